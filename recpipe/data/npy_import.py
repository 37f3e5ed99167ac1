"""From the known .npy layout of Criteo days to a prepared directory; see `npy_export` for the files of a day."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.arrays import map_array
from recpipe.data.npy_export import STEP, copy_rows
from recpipe.data.npz import map_npz
from recpipe.data.paths import writing
from recpipe.data.prepare.assign import SPLITS
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.manifest import FORMAT
from recpipe.data.prepare.npy import NpyWriter, digest_of
from recpipe.data.prepare.vocabulary import MISSING, RARE
from recpipe.errors import DataError
from recpipe.untrusted import Source

ROWS_PER_SHARD = 1 << 20
SPARSE = ("sparse_multi_hot.npz", "sparse_contig_freq.npy", "sparse.npy")
COUNTED = ("ids", "missing", "rare")


@dataclass(frozen=True)
class Day:
    """Rows of a day.

    Args:
        dense: rows x dense columns.
        labels: one a row.
        ids: arrays of rows x ids, side by side.
        sizes: ids a row of each feature; None where the rows are one-hot.
    """

    dense: np.ndarray
    labels: np.ndarray
    ids: list[np.ndarray]
    sizes: np.ndarray | None

    def rows(self, start: int, stop: int) -> Day:
        """Rows [start, stop)."""
        return Day(self.dense[start:stop], self.labels[start:stop], [one[start:stop] for one in self.ids], self.sizes)

    def pieces(self) -> Iterator[np.ndarray]:
        """Ids, rows x all ids of a row, a piece of the rows at a time."""
        for start in range(0, len(self.labels), STEP):
            yield np.concatenate([one[start : start + STEP] for one in self.ids], axis=1)


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
    with writing(partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _import(source, partial)
        partial.replace(out)
    return out


def _import(source: Path, target: Path) -> None:
    """Write the shards and the manifest."""
    records: list[dict[str, Any]] = []
    tops = []
    counters = dict.fromkeys(SPLITS, 0)
    for split, rows in _shards(source):
        record, top = _write_shard(target, rows, split, counters[split])
        counters[split] += 1
        records.append(record)
        tops.append(top)
    manifest = _manifest(source, records, np.max(tops, axis=0))
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _shards(source: Path) -> Iterator[tuple[str, Day]]:
    """Split and rows of each shard, in order."""
    for number, split, part in _days(source):
        day = _open_day(source, number)
        rows = len(day.labels)
        start, stop = (-int(-rows * share // 1) for share in part)
        for first in range(start, stop, ROWS_PER_SHARD):
            yield split, day.rows(first, min(first + ROWS_PER_SHARD, stop))


def _days(source: Path) -> list[tuple[int, str, tuple[float, float]]]:
    """(day, split, share of its rows) in order."""
    days = sorted(int(path.name.split("_")[1]) for path in source.glob("day_*_labels.npy"))
    if not days:
        wanted = "day_N_dense.npy, day_N_labels.npy and day_N_sparse.npy or day_N_sparse_multi_hot.npz"
        raise DataError(f"{source} has no day_N_labels.npy; expected {wanted}")
    if (source / "days.json").is_file():
        entries = Source(source / "days.json").json()["days"]
        known = {entry["day"].integer(): entry["split"].text(SPLITS) for entry in entries.items()}
        missing = [day for day in days if day not in known]
        if missing:
            raise entries.wrong(f"have no day {missing[0]}")
        return [(day, known[day], (0.0, 1.0)) for day in days]
    if len(days) == 1:
        return [(days[0], "train", (0.0, 1.0))]
    last = [(days[-1], "valid", (0.0, 0.5)), (days[-1], "test", (0.5, 1.0))]
    return [(day, "train", (0.0, 1.0)) for day in days[:-1]] + last


def _open_day(source: Path, number: int) -> Day:
    """The mapped arrays of a day."""
    dense = map_array(source / f"day_{number}_dense.npy", shape=(None, None))
    labels = map_array(source / f"day_{number}_labels.npy").reshape(-1)
    ids, sizes = _open_ids(source, number)
    rows = {"dense": len(dense), "labels": len(labels), **{f"ids {n}": len(one) for n, one in enumerate(ids)}}
    if len(set(rows.values())) != 1:
        raise DataError(f"day {number} in {source} has different numbers of rows: {rows}")
    return Day(dense, labels, ids, sizes)


def _open_ids(source: Path, number: int) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The ids of a day and, where they are multi-hot, the ids a row of each feature."""
    found = [source / f"day_{number}_{name}" for name in SPARSE if (source / f"day_{number}_{name}").is_file()]
    if not found:
        known = " or ".join(f"day_{number}_{name}" for name in SPARSE)
        raise DataError(f"{source} has no {known}")
    if found[0].suffix == ".npy":
        return [map_array(found[0], "iu", (None, None))], None
    if len(found) > 1:
        raise DataError(f"{source} has one-hot and multi-hot ids of day {number}; move one of them away")
    arrays = map_npz(found[0])
    wrong = [name for name in arrays if not name.isdigit() or arrays[name].ndim != 2 or arrays[name].dtype.kind != "i"]
    if wrong or sorted(map(int, arrays)) != list(range(len(arrays))):
        wanted = "integers of rows x ids, named 0, 1, ..."
        raise DataError(f"{found[0]} holds {', '.join(arrays) or 'nothing'}; its arrays must be {wanted}")
    ids = [arrays[str(n)] for n in range(len(arrays))]
    return ids, np.array([one.shape[1] for one in ids], dtype=np.int32)


def _write_shard(out: Path, day: Day, split: str, index: int) -> tuple[dict[str, Any], np.ndarray]:
    """Write one shard; returns its record and the largest id of each feature."""
    if not all(np.isfinite(day.dense[n : n + STEP]).all() for n in range(0, len(day.dense), STEP)):
        raise DataError(f"{split} rows have a dense value that is not finite")
    paths = {kind: out / f"{split}-{index:05d}.{kind}.npy" for kind in ("dense", "ids", "labels")}
    copy_rows(day.dense, paths["dense"], np.float32, day.dense.shape[1])
    copy_rows(day.labels, paths["labels"], np.float32, None)
    counts, top = _write_ids(day, paths["ids"], split)
    if day.sizes is not None:
        paths["lengths"] = out / f"{split}-{index:05d}.lengths.npy"
        lengths = np.broadcast_to(day.sizes, (len(day.labels), len(day.sizes)))
        copy_rows(lengths, paths["lengths"], np.int32, len(day.sizes))
    files = {kind: {"name": p.name, "bytes": p.stat().st_size, "sha256": digest_of(p)} for kind, p in paths.items()}
    record = {"split": split, "index": index, "rows": len(day.labels), "files": files}
    return record | dict(zip(COUNTED, counts.tolist(), strict=True)), top


def _write_ids(day: Day, path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Write the ids; returns ids, missing and rare ones of each feature, and the largest id of each."""
    columns = sum(one.shape[1] for one in day.ids)
    sizes = np.ones(columns, dtype=np.int64) if day.sizes is None else day.sizes.astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    counts, top = np.zeros((3, len(sizes)), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    with NpyWriter(path, np.dtype(np.int32), columns if day.sizes is None else None) as writer:
        for ids in day.pieces():
            if ids.min(initial=0) < 0:
                raise DataError(f"{split} rows have a negative id; the files must hold contiguous ids")
            found = [np.full(columns, len(ids)), (ids == MISSING).sum(axis=0), (ids == RARE).sum(axis=0)]
            counts += np.add.reduceat(found, starts, axis=1)
            top = np.maximum(top, np.maximum.reduceat(ids.max(axis=0), starts))
            writer.append(ids if day.sizes is None else ids.ravel())
    return counts, top


def _manifest(source: Path, records: list[dict[str, Any]], largest: np.ndarray) -> dict[str, Any]:
    """A manifest that says where the ids came from and nothing that is not known."""
    rows = {split: sum(r["rows"] for r in records if r["split"] == split) for split in SPLITS}
    jagged = "lengths" in records[0]["files"]
    columns = map_array(next(source.glob("day_*_dense.npy")), shape=(None, None)).shape[1]
    return {
        "format": FORMAT,
        "digest": f"import-{source.name}",
        "rows": rows,
        "lines": sum(rows.values()),
        "bad_lines": 0,
        "rows_per_shard": max(r["rows"] for r in records),
        "jagged": jagged,
        "dense": [{"name": f"int_{n}", "min": None, "max": None, "missing_share": 0.0} for n in range(columns)],
        "transform": {"name": "imported", "formula": "as in the imported files"},
        "vocabulary": {"kind": "frequency", "threshold": 0, "of": "as in the imported files", "ids": {"missing": 0}},
        "features": _features(source, records, largest, jagged),
        "shards": records,
        "provenance": {
            "settings": {},
            "sources": [{"name": source.name, "role": "main", "bytes": 0, "lines": sum(rows.values())}],
        },
    }


def _features(source: Path, records: list[dict[str, Any]], largest: np.ndarray, jagged: bool) -> list[dict[str, Any]]:
    """Name, size and counts of each feature; `days.json` knows the first two, else the size follows from the ids."""
    known = _known_features(source, len(largest))
    return [
        {
            "name": known[n][0] if known else f"cat_{n}",
            "num_ids": known[n][1] if known else int(top) + 1,
            "multi_valued": jagged,
            "weighted": False,
            **{kind: {s: sum(r[kind][n] for r in records if r["split"] == s) for s in SPLITS} for kind in COUNTED},
        }
        for n, top in enumerate(largest)
    ]


def _known_features(source: Path, count: int) -> list[tuple[str, int]]:
    """Name and size of each feature, where `days.json` is there."""
    path = source / "days.json"
    if not path.is_file():
        return []
    known = Source(path).json()
    names, sizes = known["features"].items(count), known["num_ids"].items(count)
    return [(name.text(), size.integer(1)) for name, size in zip(names, sizes, strict=True)]
