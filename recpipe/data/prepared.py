"""A prepared directory as a data set: shards mapped when they are first read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recpipe.data.arrays import map_array as map_array
from recpipe.data.config import DataConfig
from recpipe.data.dataset import SPLITS, Dataset
from recpipe.data.encoding import Encoding
from recpipe.data.multi_hot import with_multi_hot
from recpipe.data.paths import AnyPath, copy_file, to_path
from recpipe.data.prepare.inputs import MANIFEST
from recpipe.data.prepare.vocabulary import MISSING, RARE
from recpipe.data.prepared_manifest import read_manifest as read_manifest
from recpipe.data.rows import MemoryStore, Rows, Store
from recpipe.data.statistics import feature_statistics
from recpipe.data.unseen import unseen_by_split
from recpipe.errors import ConfigError, DataError
from recpipe.specs import Feature, Schema
from recpipe.untrusted import Source, member


class ShardStore:
    """Rows of one split, in shards.

    Args:
        directory: the prepared directory.
        records: the manifest's entries of this split, in order.
        copies: local directory for the files of a remote one.
    """

    def __init__(self, directory: AnyPath, records: list[dict[str, Any]], copies: Path | None = None) -> None:
        self._directory, self._records, self._copies = directory, records, copies
        self._starts = np.cumsum([0] + [record["rows"] for record in records])
        self._open: dict[int, MemoryStore] = {}

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    def gather(self, rows: np.ndarray) -> Rows:
        """The rows at these stored positions, in the order given."""
        if len(self._records) == 1 or not len(rows):
            return self._shard(0).gather(rows)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        if (shard == shard[0]).all():
            return self._part(int(shard[0]), rows)
        order = np.argsort(shard, kind="stable")
        starts = np.flatnonzero(np.diff(shard[order], prepend=-1))
        groups = np.split(order, starts[1:])
        return _restore([self._part(int(shard[group[0]]), rows[group]) for group in groups], order)

    def _part(self, number: int, rows: np.ndarray) -> Rows:
        """Rows of one shard, by their position in the split."""
        return self._shard(number).gather(rows - self._starts[number])

    def _shard(self, number: int) -> MemoryStore:
        """A shard, mapped."""
        if number not in self._open:
            files = self._records[number]["files"]
            arrays = {kind: map_array(self._local(file)) for kind, file in files.items()}
            self._open[number] = checked_store(Rows(**arrays), self._records[number], str(self._directory))
        return self._open[number]

    def _local(self, file: dict[str, Any]) -> Path:
        """Where a file of the directory can be mapped."""
        if isinstance(self._directory, Path) or self._copies is None:
            folder = Path(str(self._directory))
            return member(folder, file["name"], Source(folder / MANIFEST, DataError, "prepare the data again"))
        copy_file(self._directory / file["name"], self._copies / file["name"], file["sha256"], file["bytes"])
        return self._copies / file["name"]


def checked_store(rows: Rows, record: dict[str, Any], where: str) -> MemoryStore:
    """A store of a shard whose arrays fit each other and its record.

    Raises:
        DataError: they do not; with the shard.
    """
    count, features = record["rows"], len(record["ids"])
    jagged = rows.lengths is not None
    wanted = {"dense": (count, None), "labels": (count,), "ids": (None,) if jagged else (count, features)}
    wanted |= {"lengths": (count, features)} if jagged else {}
    shapes = {kind: getattr(rows, kind).shape for kind in wanted}
    fits = all(_fits(shapes[kind], shape) for kind, shape in wanted.items()) and rows.ids.dtype.kind in "iu"
    if rows.lengths is not None and fits:
        fits = rows.lengths.dtype.kind == "i" and bool((rows.lengths >= 0).all())
        fits = fits and int(rows.lengths.sum(dtype=np.int64)) == len(rows.ids)
    if not fits or (rows.weights is not None and rows.weights.shape != rows.ids.shape):
        place = f"{record['split']} shard {record['index']} of {where}"
        raise DataError(f"{place}: its files have shapes {shapes}, which do not fit the manifest; prepare the data again")
    return MemoryStore.of(rows)


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(want in (None, n) for n, want in zip(found, wanted, strict=True))


def _restore(parts: list[Rows], order: np.ndarray) -> Rows:
    """Rows of several shards, put back in the order that was asked for."""
    back = np.argsort(order, kind="stable")
    lengths = None
    if parts[0].lengths is not None:
        lengths = np.concatenate([part.lengths for part in parts if part.lengths is not None])
    weights = [part.weights for part in parts if part.weights is not None]
    joined = Rows(
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        lengths,
        np.concatenate(weights) if weights else None,
    )
    return MemoryStore.of(joined).gather(back)


def schema_of(manifest: Mapping[str, Any]) -> Schema:
    """Columns as a model sees them."""
    rows = max(1, sum(manifest["rows"].values()))
    features = [
        Feature(
            entry["name"], entry["num_ids"], sum(entry["ids"].values()) / rows, entry["weighted"], _untrained(entry)
        )
        for entry in manifest["features"]
    ]
    return Schema(len(manifest["dense"]), tuple(features))


def _untrained(entry: dict[str, Any]) -> tuple[int, ...]:
    """Of the ids of missing and of unseen values, those that no training row has; an id that training rows have is trained."""
    kinds = ((MISSING, "missing"), (RARE, "rare"))
    return tuple(id for id, kind in kinds if id < entry["num_ids"] and not entry[kind]["train"])


def prepared_dataset(directory: str | Path, config: DataConfig, seed: int) -> Dataset:
    """The rows of a prepared directory."""
    if not str(directory):
        raise ConfigError("data=prepared reads a directory that `recpipe data prepare` wrote: give data.path=DIR")
    path = to_path(str(directory))
    manifest = read_manifest(path)
    copies = None if isinstance(path, Path) else _copies(manifest, config)
    stores: dict[str, Store] = {
        split: ShardStore(path, [r for r in manifest["shards"] if r["split"] == split], copies)
        for split in SPLITS
        if manifest["rows"][split]
    }
    schema, stores = with_multi_hot(config, schema_of(manifest), stores)
    statistics = feature_statistics(schema, stores["train"])
    return Dataset(
        schema,
        stores,
        _describe(path, manifest),
        config,
        seed,
        statistics,
        warnings=manifest["provenance"].get("warnings", ()),
        unseen=unseen_by_split(manifest["features"]),
        encoding=Encoding(path, manifest),
    )


def _copies(manifest: dict[str, Any], config: Any) -> Path:
    """Where the files of a remote directory are copied: another place when its contents are others."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return Path(config.cache_dir).expanduser() / f"remote-{digest[:16]}"


def _describe(path: AnyPath, manifest: dict[str, Any]) -> str:
    """One line on where the rows come from."""
    files = ", ".join(source["name"] for source in manifest["provenance"]["sources"][:3])
    more = len(manifest["provenance"]["sources"]) - 3
    rows = ", ".join(f"{count:,} {split}" for split, count in manifest["rows"].items())
    return f"{files}{f' and {more} more' if more > 0 else ''}, prepared in {path}: {rows}"
