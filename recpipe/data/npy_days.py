"""The known .npy layout of Criteo days, in and out: `day_N_{dense,sparse,labels}.npy`, `day_N_sparse_contig_freq.npy`.

Dense float32 rows x 13, ids int32 rows x 26, labels int32 rows x 1. One shard becomes one day; the splits of the days are
written beside them (`days.json`), which other trainers ignore.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.prepare.assign import SPLITS
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.manifest import FORMAT
from recpipe.data.prepare.npy import NpyWriter, digest_of
from recpipe.data.prepare.vocabulary import MISSING, RARE
from recpipe.data.prepared import map_array, read_manifest
from recpipe.errors import DataError

STEP = 1 << 18
SPARSE = ("sparse_contig_freq", "sparse")


def export_days(directory: Path, target: Path) -> Path:
    """Write every shard of a prepared directory as a day.

    Args:
        directory: a prepared directory with one id a feature and row.
        target: gets the .npy files; must not have any yet.

    Raises:
        DataError: multi-valued features, or files in the way.
    """
    manifest = read_manifest(directory)
    if manifest["jagged"]:
        raise DataError(f"{directory} has multi-valued features; day_N_sparse.npy has one id a feature and row")
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("day_*.npy")):
        raise DataError(f"{target} has day files already; choose another npy_dir")
    days = []
    for day, shard in enumerate(manifest["shards"]):
        arrays = {kind: map_array(directory / file["name"]) for kind, file in shard["files"].items()}
        if not np.isfinite(arrays["labels"]).all():
            raise DataError(f"{shard['split']} rows have no labels; the .npy layout needs them")
        _copy(arrays["dense"], target / f"day_{day}_dense.npy", np.float32, arrays["dense"].shape[1])
        _copy(arrays["ids"], target / f"day_{day}_sparse_contig_freq.npy", np.int32, arrays["ids"].shape[1])
        _copy(arrays["labels"][:, None], target / f"day_{day}_labels.npy", np.int32, 1)
        days.append({"day": day, "split": shard["split"]})
    names = [feature["name"] for feature in manifest["features"]]
    sizes = [feature["num_ids"] for feature in manifest["features"]]
    (target / "days.json").write_text(json.dumps({"days": days, "features": names, "num_ids": sizes}, indent=1) + "\n")
    return target


def _copy(values: np.ndarray, path: Path, dtype: Any, columns: int | None) -> None:
    """Copy an array to a file, a piece at a time."""
    with NpyWriter(path, np.dtype(dtype), columns) as writer:
        for start in range(0, len(values), STEP):
            writer.append(values[start : start + STEP])


def import_days(source: Path, out: Path) -> Path:
    """A prepared directory of day files; the last day is cut in halves, valid and test, unless `days.json` says more.

    Args:
        source: directory of day files whose ids are contiguous.
        out: the new prepared directory.

    Raises:
        DataError: missing files, other shapes, non-finite values, negative ids, or `out` exists.
    """
    if out.exists():
        raise DataError(f"{out} exists; choose another directory")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    records, largest = [], np.zeros(0, dtype=np.int64)
    counters = dict.fromkeys(SPLITS, 0)
    for day, split, part in _days(source):
        arrays = _open_day(source, day, part)
        record, top = _write_shard(partial, arrays, split, counters[split])
        counters[split] += 1
        records.append(record)
        largest = np.maximum(largest, top) if len(largest) else top
    (partial / MANIFEST).write_text(json.dumps(_manifest(source, records, largest), indent=1) + "\n")
    partial.replace(out)
    return out


def _days(source: Path) -> list[tuple[int, str, tuple[float, float]]]:
    """(day, split, share of its rows) in order."""
    days = sorted(int(path.name.split("_")[1]) for path in source.glob("day_*_labels.npy"))
    if not days:
        raise DataError(
            f"{source} has no day_N_labels.npy; expected day_N_dense.npy, day_N_sparse.npy, day_N_labels.npy"
        )
    if (source / "days.json").is_file():
        known = {entry["day"]: entry["split"] for entry in json.loads((source / "days.json").read_text())["days"]}
        return [(day, known[day], (0.0, 1.0)) for day in days]
    if len(days) == 1:
        return [(days[0], "train", (0.0, 1.0))]
    last = [(days[-1], "valid", (0.0, 0.5)), (days[-1], "test", (0.5, 1.0))]
    return [(day, "train", (0.0, 1.0)) for day in days[:-1]] + last


def _open_day(source: Path, day: int, part: tuple[float, float]) -> dict[str, np.ndarray]:
    """Mapped arrays of a share of a day."""
    sparse = next((kind for kind in SPARSE if (source / f"day_{day}_{kind}.npy").is_file()), None)
    if sparse is None:
        raise DataError(f"{source} has no day_{day}_sparse_contig_freq.npy or day_{day}_sparse.npy")
    arrays = {
        "dense": map_array(source / f"day_{day}_dense.npy"),
        "ids": map_array(source / f"day_{day}_{sparse}.npy"),
        "labels": map_array(source / f"day_{day}_labels.npy").reshape(-1),
    }
    rows = {kind: len(values) for kind, values in arrays.items()}
    if len(set(rows.values())) != 1:
        raise DataError(f"day {day} in {source} has different numbers of rows: {rows}")
    start, stop = (-int(-rows["labels"] * share // 1) for share in part)
    return {kind: values[start:stop] for kind, values in arrays.items()}


def _write_shard(out: Path, arrays: dict[str, np.ndarray], split: str, index: int) -> tuple[dict[str, Any], np.ndarray]:
    """Copy one shard; returns its record and the largest id of each feature."""
    features = arrays["ids"].shape[1]
    counts, top = np.zeros((3, features), dtype=np.int64), np.zeros(features, dtype=np.int64)
    for start in range(0, len(arrays["ids"]), STEP):
        ids = np.asarray(arrays["ids"][start : start + STEP])
        if ids.min(initial=0) < 0:
            raise DataError(f"{split} rows have a negative id; day_N_sparse.npy must hold contiguous ids")
        if not np.isfinite(arrays["dense"][start : start + STEP]).all():
            raise DataError(f"{split} rows have a dense value that is not finite")
        counts += [np.full(features, len(ids)), (ids == MISSING).sum(axis=0), (ids == RARE).sum(axis=0)]
        top = np.maximum(top, ids.max(axis=0, initial=0))
    files = {}
    for kind, (dtype, columns) in _kinds(arrays).items():
        path = out / f"{split}-{index:05d}.{kind}.npy"
        _copy(arrays[kind], path, dtype, columns)
        files[kind] = {"name": path.name, "bytes": path.stat().st_size, "sha256": digest_of(path)}
    record = {"split": split, "index": index, "rows": len(arrays["labels"]), "files": files}
    return record | dict(zip(_COUNTED, counts.tolist(), strict=True)), top


def _kinds(arrays: dict[str, np.ndarray]) -> dict[str, tuple[Any, int | None]]:
    """Type and columns of each kind of file."""
    return {
        "dense": (np.float32, arrays["dense"].shape[1]),
        "ids": (np.int32, arrays["ids"].shape[1]),
        "labels": (np.float32, None),
    }


def _manifest(source: Path, records: list[dict[str, Any]], largest: np.ndarray) -> dict[str, Any]:
    """A manifest that says where the ids came from and nothing that is not known."""
    rows = {split: sum(r["rows"] for r in records if r["split"] == split) for split in SPLITS}
    known = json.loads((source / "days.json").read_text()) if (source / "days.json").is_file() else {}
    features = [
        {
            "name": known.get("features", {})[n] if known else f"cat_{n}",
            "num_ids": known["num_ids"][n] if known else int(top) + 1,
            "multi_valued": False,
            "weighted": False,
            **{kind: {s: sum(r[kind][n] for r in records if r["split"] == s) for s in SPLITS} for kind in _COUNTED},
        }
        for n, top in enumerate(largest)
    ]
    columns = int(np.load(source / next(source.glob("day_*_dense.npy")).name, mmap_mode="r").shape[1])
    dense = [{"name": f"int_{n}", "min": None, "max": None, "missing_share": 0.0} for n in range(columns)]
    return {
        "format": FORMAT,
        "digest": f"import-{source.name}",
        "rows": rows,
        "lines": sum(rows.values()),
        "bad_lines": 0,
        "rows_per_shard": max(r["rows"] for r in records),
        "jagged": False,
        "dense": dense,
        "transform": {"name": "imported", "formula": "as in the imported files"},
        "vocabulary": {"kind": "frequency", "threshold": 0, "of": "as in the imported files", "ids": {"missing": 0}},
        "features": features,
        "shards": records,
        "provenance": {
            "settings": {},
            "sources": [{"name": source.name, "role": "main", "bytes": 0, "lines": sum(rows.values())}],
        },
    }


_COUNTED = ("ids", "missing", "rare")
