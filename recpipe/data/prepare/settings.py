"""Checks of the preparation's settings, and the digest that names its result."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import fields
from typing import Any

from recpipe.data.config import SCHEMAS, VOCABULARIES, DataConfig
from recpipe.data.paths import is_remote
from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.transform import check_transforms
from recpipe.errors import ConfigError, nearest

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
LEAST_MEMORY = 256 << 20
BASE_MEMORY = 200 << 20
COPIES = 10
LARGEST_CHUNK = 8 << 20
SMALLEST_CHUNK = 1 << 20
# Settings that change how the work is done or the rows are read, never what is written.
WITHOUT_EFFECT = ("out", "cache_dir", "max_bad_share", "memory_limit", "threads")


def check_settings(config: Any) -> None:
    """Values in range.

    Raises:
        ConfigError: the setting, its value and what it may be.
    """
    check_transforms(config.dense_transform, config.transforms)
    for name in ("out", "cache_dir"):
        if is_remote(getattr(config, name)):
            raise ConfigError(
                f"data.{name}={getattr(config, name)} must be a local directory; copy the result afterwards"
            )
    if config.vocabulary not in VOCABULARIES:
        raise ConfigError(f"data.vocabulary={config.vocabulary} is unknown; {nearest(config.vocabulary, VOCABULARIES)}")
    least = {"frequency_threshold": 1, "max_ids": 0, "hash_size": 3, "threads": 0, "rows_per_shard": 1}
    for name, low in least.items():
        if getattr(config, name) < low:
            raise ConfigError(f"data.{name}={getattr(config, name)} must be at least {low}")
    for column, threshold in config.frequency_thresholds.items():
        if threshold < 1:
            raise ConfigError(f"data.frequency_thresholds.{column}={threshold} must be at least 1")
    if 0 < config.max_ids < 3:
        raise ConfigError(f"data.max_ids={config.max_ids} must be 0 (no limit) or at least 3 (0 missing, 1 rare)")
    if not 0 <= config.max_bad_share < 1:
        raise ConfigError(f"data.max_bad_share={config.max_bad_share} must be in [0, 1)")


def num_threads(config: Any) -> int:
    """Threads to use: those asked for, or one a core that this process may use."""
    return config.threads or len(os.sched_getaffinity(0))


def memory_limit(text: str) -> int:
    """Bytes of a text such as 2GiB, 500MB or 1000000.

    Raises:
        ConfigError: not a size, or too small to work in.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if not match:
        raise ConfigError(f"data.memory_limit={text} is not a size such as 2GiB or 500MB")
    size = int(float(match[1]) * UNITS[match[2] or ""])
    if size < LEAST_MEMORY:
        raise ConfigError(f"data.memory_limit={text} is too small; at least {LEAST_MEMORY >> 20}MiB are needed")
    return size


def chunk_size(limit: int, threads: int) -> int:
    """Bytes of text that each thread parses at a time, so that all of them stay under the limit.

    Raises:
        ConfigError: the limit is too small for so many threads.
    """
    size = (limit - BASE_MEMORY) // (threads * COPIES)
    if size < SMALLEST_CHUNK:
        fitting = max(1, (limit - BASE_MEMORY) // (SMALLEST_CHUNK * COPIES))
        raise ConfigError(f"data.memory_limit is too small for {threads} threads; use data.threads={fitting} or less")
    return min(size, LARGEST_CHUNK)


def effective(config: Any) -> dict[str, Any]:
    """The settings that decide what is written."""
    reading = {field.name for field in fields(DataConfig)} - {"name"}
    names = [field.name for field in fields(SCHEMAS[config.name])]
    return {name: _plain(getattr(config, name)) for name in names if name not in reading and name not in WITHOUT_EFFECT}


def digest(config: Any, sources: list[Source], begun: str = "") -> str:
    """Names what is written: settings, files (path, role, size, version), and the encoding (its digest) that it begins with."""
    files = [[str(s.path.resolve()), s.role, s.size, s.version] for s in sources]
    settings = {name: value for name, value in effective(config).items() if not name.endswith("path")}
    more = [begun] if begun else []
    return hashlib.sha256(json.dumps([settings, files, *more], sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Lists and mappings of any kind as plain ones."""
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if isinstance(value, str | int | float | bool) or value is None else [_plain(v) for v in value]
