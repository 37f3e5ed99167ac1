"""A prepared directory in the known .npy layout of Criteo days, which TorchRec and MLPerf read.

`day_N_dense.npy` float32 rows x 13, `day_N_labels.npy` int32 rows x 1, and `day_N_sparse_contig_freq.npy` int32 rows x 26 or
`day_N_sparse_multi_hot.npz` with an int32 array of rows x ids for each feature, named "0", "1", ... One shard becomes one
day; the splits of the days are written beside them (`days.json`), which other trainers ignore.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.config import DataConfig
from recpipe.data.multi_hot import MultiHot, multi_hot_of
from recpipe.data.npz import write_npz
from recpipe.data.paths import writing
from recpipe.data.prepare.npy import NpyWriter
from recpipe.data.prepared import map_array, read_manifest, schema_of
from recpipe.errors import DataError

STEP = 1 << 16


def export_days(directory: Path, target: Path, config: DataConfig) -> Path:
    """Write every shard of a prepared directory as a day.

    Args:
        directory: a prepared directory; of multi-hot features, each has the same number of ids in every row.
        target: the new directory.
        config: `multi_hot_sizes` and what belongs to it: expand one-hot rows.

    Raises:
        ConfigError: an expansion that does not fit the rows.
        DataError: rows that the layout cannot hold, `target` is in use, or no room on disk.
    """
    manifest = read_manifest(directory)
    if manifest["jagged"] and config.multi_hot_sizes:
        raise DataError(f"{directory} is multi-hot as stored; leave data.multi_hot_sizes out")
    multi_hot = multi_hot_of(config, schema_of(manifest)) if config.multi_hot_sizes else None
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is in use; choose another npy_dir")
    partial = target.with_name(target.name + ".partial")
    with writing(partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _export(directory, manifest, partial, multi_hot)
        partial.replace(target)
    return target


def _export(directory: Path, manifest: dict[str, Any], target: Path, multi_hot: MultiHot | None) -> None:
    """All days, and what is not in the days themselves."""
    for day, shard in enumerate(manifest["shards"]):
        arrays = {kind: map_array(directory / file["name"]) for kind, file in shard["files"].items()}
        _export_day(target, day, arrays, multi_hot)
    days = [{"day": day, "split": shard["split"]} for day, shard in enumerate(manifest["shards"])]
    names = [feature["name"] for feature in manifest["features"]]
    sizes = [feature["num_ids"] for feature in manifest["features"]]
    (target / "days.json").write_text(json.dumps({"days": days, "features": names, "num_ids": sizes}, indent=1) + "\n")


def _export_day(target: Path, day: int, arrays: dict[str, np.ndarray], multi_hot: MultiHot | None) -> None:
    """The files of one day."""
    if not np.isfinite(arrays["labels"]).all():
        raise DataError(f"day {day} has rows without labels; the .npy layout needs them")
    copy_rows(arrays["dense"], target / f"day_{day}_dense.npy", np.float32, arrays["dense"].shape[1])
    copy_rows(arrays["labels"][:, None], target / f"day_{day}_labels.npy", np.int32, 1)
    if multi_hot is None and "lengths" not in arrays:
        copy_rows(arrays["ids"], target / f"day_{day}_sparse_contig_freq.npy", np.int32, arrays["ids"].shape[1])
        return
    sizes = _sizes(day, arrays) if multi_hot is None else multi_hot.sizes
    rows = len(arrays["labels"])
    features = ((str(n), (rows, size), _bags(arrays, sizes, n, multi_hot)) for n, size in enumerate(sizes))
    write_npz(target / f"day_{day}_sparse_multi_hot.npz", features)


def _sizes(day: int, arrays: dict[str, np.ndarray]) -> tuple[int, ...]:
    """Ids a row of each feature, the same in all rows."""
    lengths = arrays["lengths"]
    if "weights" in arrays:
        raise DataError("the .npz layout has no weights")
    if any((lengths[start : start + STEP] != lengths[0]).any() for start in range(0, len(lengths), STEP)):
        raise DataError(f"day {day} has features whose number of ids varies; the .npz layout has the same in every row")
    return tuple(int(size) for size in lengths[0])


def _bags(
    arrays: dict[str, np.ndarray], sizes: tuple[int, ...], feature: int, multi_hot: MultiHot | None
) -> Iterator[np.ndarray]:
    """Ids of one feature, rows x ids, a piece of the rows at a time."""
    rows, first = len(arrays["labels"]), sum(sizes[:feature])
    for start in range(0, rows, STEP):
        if multi_hot is None:
            yield arrays["ids"].reshape(rows, -1)[start : start + STEP, first : first + sizes[feature]]
        else:
            yield multi_hot.bags(feature, arrays["ids"][start : start + STEP, feature])


def copy_rows(values: np.ndarray, path: Path, dtype: Any, columns: int | None) -> None:
    """Copy an array to a .npy file, a piece at a time."""
    with NpyWriter(path, np.dtype(dtype), columns) as writer:
        for start in range(0, len(values), STEP):
            writer.append(values[start : start + STEP])
