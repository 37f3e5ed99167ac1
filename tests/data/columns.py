"""Small tables with columns of any kind, made here, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.config import TableData
from recpipe.data.prepare.job import prepare
from tests.data.lines import silent


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]], delimiter: str = ",") -> Path:
    """A text file with a header; None becomes an empty field."""
    rows = zip(*columns.values(), strict=True)
    lines = [delimiter.join(columns), *(delimiter.join("" if v is None else str(v) for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(path: Path, **changes: Any) -> TableData:
    """Settings for a file of `write_columns`; the cache lies beside it."""
    return TableData(**({"path": str(path), "cache_dir": str(path.parent / "cache"), "threads": 2} | changes))


def manifest_of(path: Path, **changes: Any) -> dict[str, Any]:
    """The manifest of the prepared file."""
    found: dict[str, Any] = json.loads((prepare(settings(path, **changes), silent) / "manifest.json").read_text())
    return found


def warnings_of(path: Path, **changes: Any) -> list[str]:
    """The warnings of the prepared file."""
    return list(manifest_of(path, **changes)["provenance"]["warnings"])


def stored(path: Path, kind: str = "dense", split: str = "train", **changes: Any) -> np.ndarray:
    """What was written of a split, as one array."""
    directory = prepare(settings(path, **changes), silent)
    shards = [s for s in json.loads((directory / "manifest.json").read_text())["shards"] if s["split"] == split]
    return np.concatenate([np.load(directory / shard["files"][kind]["name"]) for shard in shards])
