"""Does a prepared directory hold what its manifest says? Every file is read again, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.prepare.listing import MANIFEST
from recpipe.data.prepare.npy import digest_of
from recpipe.data.prepare.vocabulary import MISSING, RARE
from recpipe.data.prepared import map_array, read_manifest
from recpipe.errors import DataError

STEP = 1 << 18


def verify_directory(directory: Path) -> list[str]:
    """What is wrong, one line each; an empty list means that all counts and checksums are right.

    Args:
        directory: a prepared directory.

    Raises:
        DataError: the directory has no manifest.
    """
    try:
        manifest = read_manifest(directory)
    except DataError as error:
        if not (directory / MANIFEST).is_file():
            raise
        return [str(error)]
    problems = _totals(manifest)
    for shard in manifest["shards"]:
        where = f"{shard['split']} shard {shard['index']}"
        problems += [f"{where}: {text}" for text in _shard(directory, manifest, shard)]
    for feature in manifest["features"]:
        for name, file in feature.get("files", {}).items():
            problems += _file(directory / "vocabulary" / name, file)
    return problems


def _totals(manifest: dict[str, Any]) -> list[str]:
    """The lines of the files are rows or bad lines."""
    if sum(manifest["rows"].values()) + manifest["bad_lines"] != manifest["lines"]:
        return ["rows and bad lines do not add up to the lines read"]
    return []


def _file(path: Path, file: dict[str, Any]) -> list[str]:
    """Size and checksum of one file."""
    if not path.is_file():
        return [f"{path.name} is missing"]
    if path.stat().st_size != file["bytes"]:
        return [f"{path.name} has {path.stat().st_size:,} bytes, the manifest says {file['bytes']:,}"]
    if digest_of(path) != file["sha256"]:
        return [f"{path.name} has another checksum than the manifest says"]
    return []


def _shard(directory: Path, manifest: dict[str, Any], shard: dict[str, Any]) -> list[str]:
    """Files and contents of a shard; contents only when the files can be mapped."""
    problems = [line for file in shard["files"].values() for line in _file(directory / file["name"], file)]
    try:
        arrays = {kind: map_array(directory / file["name"]) for kind, file in shard["files"].items()}
    except DataError:
        return problems
    return problems + _rows(arrays, shard) + _values(arrays) + _ids(arrays, manifest, shard)


def _rows(arrays: dict[str, np.ndarray], shard: dict[str, Any]) -> list[str]:
    """Every file has the shard's number of rows."""
    kinds = [kind for kind in arrays if kind in ("dense", "labels", "lengths")]
    return [f"{k} has {len(arrays[k])} rows, not {shard['rows']}" for k in kinds if len(arrays[k]) != shard["rows"]]


def _values(arrays: dict[str, np.ndarray]) -> list[str]:
    """Dense values are finite."""
    dense = arrays["dense"]
    bad = sum(int((~np.isfinite(dense[start : start + STEP])).sum()) for start in range(0, len(dense), STEP))
    return [f"{bad:,} dense values are not finite"] if bad else []


def _ids(arrays: dict[str, np.ndarray], manifest: dict[str, Any], shard: dict[str, Any]) -> list[str]:
    """Ids are inside their tables, and as many are missing and rare as the manifest says."""
    features = manifest["features"]
    counts = np.zeros((3, len(features)), dtype=np.int64)
    outside = np.zeros(len(features), dtype=np.int64)
    for ids, feature in _id_pieces(arrays, len(features)):
        sizes = np.array([entry["num_ids"] for entry in features])[feature]
        for row, chosen in enumerate((np.ones(len(ids), dtype=bool), ids == MISSING, ids == RARE)):
            counts[row] += np.bincount(feature[chosen], minlength=len(features))
        outside += np.bincount(feature[(ids < 0) | (ids >= sizes)], minlength=len(features))
    problems = [
        f"feature {entry['name']}: {outside[n]:,} ids outside [0, {entry['num_ids']})"
        for n, entry in enumerate(features)
        if outside[n]
    ]
    for row, kind in enumerate(("ids", "missing", "rare")):
        for n in np.flatnonzero(counts[row] != np.array(shard[kind], dtype=np.int64)):
            name = features[n]["name"]
            problems.append(f"feature {name}: {counts[row, n]:,} {kind}, the manifest says {shard[kind][n]:,}")
    return problems


def _id_pieces(arrays: dict[str, np.ndarray], num_features: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and the feature of each, a piece of the rows at a time."""
    position = 0
    for start in range(0, len(arrays["labels"]), STEP):
        if "lengths" not in arrays:
            ids = arrays["ids"][start : start + STEP]
            yield ids.ravel(), np.tile(np.arange(num_features), len(ids))
            continue
        lengths = np.asarray(arrays["lengths"][start : start + STEP])
        total = int(lengths.sum())
        feature = np.repeat(np.tile(np.arange(num_features), len(lengths)), lengths.ravel())
        yield arrays["ids"][position : position + total], feature
        position += total
