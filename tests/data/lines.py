"""Lines in the Criteo format and tables of them, made here: no row of any real log."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from recpipe.data.config import CriteoData


def criteo_lines(count: int, seed: int = 0, labelled: bool = True, values: int = 40) -> list[bytes]:
    """Lines with missing values, negative integers and skewed hex values."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        label = [str(int(rng.random() < 0.3))] * labelled
        numbers = ["" if rng.random() < 0.2 else str(int(rng.integers(-3, 5000))) for _ in range(13)]
        ids = (rng.zipf(1.4, 26) % values) * 0x9E3779B1 % 2**32
        texts = ["" if rng.random() < 0.1 else f"{int(value):08x}" for value in ids]
        lines.append("\t".join([*label, *numbers, *texts]).encode())
    return lines


def write_lines(path: Path, lines: list[bytes], ending: bytes = b"\n") -> Path:
    """A plain, .gz or .zst file of these lines."""
    data = b"".join(line + ending for line in lines)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def criteo_config(path: Path, /, **changes: Any) -> CriteoData:
    """Settings for small files; the cache lies beside them."""
    settings: dict[str, Any] = {
        "path": str(path),
        "cache_dir": str(path.parent / "cache"),
        "frequency_threshold": 2,
        "threads": 2,
        "rows_per_shard": 100,
    }
    return CriteoData(**(settings | changes))


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a prepared directory, without where its rows came from."""
    found = {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    manifest = found.pop("manifest.json").split(b'"provenance"')[0].split(b"\n")
    found["manifest"] = b"\n".join(line for line in manifest if b'"digest"' not in line)
    return found


def silent(line: str) -> None:
    """A log that keeps nothing."""
