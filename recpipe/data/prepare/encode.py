"""Raw rows to the output: one set of .npy files a shard, row-major, ids for keys."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from recpipe.data.prepare.assign import SPLITS
from recpipe.data.prepare.columns import one_array
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.meter import Meter
from recpipe.data.prepare.npy import NpyWriter, digest_of
from recpipe.data.prepare.scale import DenseScale
from recpipe.data.prepare.vocabulary import MISSING, RARE, Encoder
from recpipe.errors import DataError
from recpipe.records import record as record_of
from recpipe.untrusted import Source


@dataclass
class ShardRecord:
    """What the manifest says of a shard.

    Args:
        split, index: which one.
        rows: its rows.
        ids, missing, rare: by feature, how many ids there are, how many are 0 and how many are 1.
        longest: by feature, the most ids of a row; empty where every row has one.
        files: kind -> name, bytes, sha256.
    """

    split: str
    index: int
    rows: int
    ids: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    rare: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    files: dict[str, dict[str, object]] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardWriter:
    """Writes shards of one job.

    Args:
        directory: where the output files go.
        done: where a shard's record goes when it is complete.
        layout: rows by chunk and split.
        scales: one a dense column.
        encoders: one a categorical column.
        jagged: some column is multi-valued: lengths are stored, too.
        weighted: the weight column (number in the raw table) of each categorical column, where it has one.
        rows_per_shard: rows of all shards of a split but the last.
        meter: told the rows written.
    """

    directory: Path
    done: Path
    layout: Layout
    scales: list[DenseScale]
    encoders: list[Encoder]
    jagged: bool
    weighted: dict[int, int]
    rows_per_shard: int
    meter: Meter

    def shards(self) -> list[tuple[int, int]]:
        """(split, index) of every shard."""
        return [
            (split, index)
            for split in range(len(SPLITS))
            for index in range(-(-self.layout.num_rows(split) // self.rows_per_shard))
        ]

    def write(self, split: int, index: int) -> ShardRecord:
        """Write one shard, unless it is there already."""
        marker = self.done / f"{SPLITS[split]}-{index:05d}.json"
        if marker.exists():
            return record_of(Source(marker, DataError, "remove the unfinished directory").json(), ShardRecord)
        record = self._write(split, index)
        partial = marker.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record)))
        os.replace(partial, marker)
        return record

    def _write(self, split: int, index: int) -> ShardRecord:
        """Write its files, piece by piece."""
        start = index * self.rows_per_shard
        stop = min(start + self.rows_per_shard, self.layout.num_rows(split))
        record = ShardRecord(SPLITS[split], index, stop - start)
        counts = np.zeros((3, len(self.encoders)), dtype=np.int64)
        longest = np.zeros(len(self.encoders), dtype=np.int64)
        paths = {kind: self.directory / f"{SPLITS[split]}-{index:05d}.{kind}.npy" for kind in self._kinds()}
        with ExitStack() as stack:
            writers = {kind: stack.enter_context(self._writer(kind, path)) for kind, path in paths.items()}
            for table in self._tables(split, start, stop):
                self._append(table, writers, counts, longest)
                self.meter.add(table.num_rows, table.num_rows)
        record.ids, record.missing, record.rare = counts.tolist()
        record.longest = longest.tolist() if self.jagged else []
        record.files = {
            kind: {"name": path.name, "bytes": path.stat().st_size, "sha256": digest_of(path)}
            for kind, path in paths.items()
        }
        return record

    def _kinds(self) -> list[str]:
        """Kinds of files of a shard."""
        return ["dense", "ids", "labels"] + ["lengths"] * self.jagged + ["weights"] * bool(self.weighted)

    def _writer(self, kind: str, path: Path) -> NpyWriter:
        """An empty file of a kind."""
        large = max((encoder.num_ids for encoder in self.encoders), default=0) > 2**31
        ids = np.dtype(np.int64 if large else np.int32)
        columns = {"dense": len(self.scales), "lengths": len(self.encoders)}
        if not self.jagged:
            columns["ids"] = len(self.encoders)
        dtype = {"ids": ids, "lengths": np.dtype(np.int32)}.get(kind, np.dtype(np.float32))
        return NpyWriter(path, dtype, columns.get(kind))

    def _tables(self, split: int, start: int, stop: int) -> Iterator[pa.Table]:
        """Raw rows [start, stop) of a split, chunk by chunk."""
        for number, first, last in self.layout.pieces(split, start, stop):
            table = self.layout.units[number].table()
            chosen = np.flatnonzero(self.layout.splits(number) == split)[first:last]
            yield table if len(chosen) == table.num_rows else table.take(pa.array(chosen))

    def _append(self, table: pa.Table, writers: dict[str, NpyWriter], counts: np.ndarray, longest: np.ndarray) -> None:
        """Encode some rows and add them to the files."""
        rows = table.num_rows
        writers["labels"].append(np.asarray(one_array(table.column(0)).fill_null(float("nan"))))
        dense = np.empty((rows, len(self.scales)), dtype=np.float32)
        for column, scale in enumerate(self.scales):
            dense[:, column] = scale.finish(table.column(1 + column))
        writers["dense"].append(dense)
        if self.jagged:
            lengths = self._append_jagged(table, writers, counts)
            np.maximum(longest, lengths.max(axis=0, initial=0), out=longest)
        else:
            self._append_ids(table, writers, counts)

    def _append_ids(self, table: pa.Table, writers: dict[str, NpyWriter], counts: np.ndarray) -> None:
        """Ids of one-hot columns, rows x features."""
        ids = np.empty((table.num_rows, len(self.encoders)), dtype=np.int64)
        for column in range(len(self.encoders)):
            ids[:, column] = self._ids(table.column(1 + len(self.scales) + column), column, counts)
        writers["ids"].append(ids)

    def _ids(self, column: pa.ChunkedArray | pa.Array, number: int, counts: np.ndarray) -> np.ndarray:
        """Ids of a flat column of keys; 0 where missing."""
        keys = one_array(column)
        missing = np.asarray(keys.is_null())
        if keys.null_count:
            keys = keys.fill_null(0)
        ids = self.encoders[number].encode(np.asarray(keys))
        ids[missing] = MISSING
        counts[:, number] += [len(ids), int(missing.sum()), int((ids == RARE).sum())]
        return ids

    def _append_jagged(self, table: pa.Table, writers: dict[str, NpyWriter], counts: np.ndarray) -> np.ndarray:
        """Ids of columns of which some are lists, flat, row by row; returns how many there are, rows x features."""
        lengths = np.ones((table.num_rows, len(self.encoders)), dtype=np.int32)
        flat, weights = [], []
        for number in range(len(self.encoders)):
            column = one_array(table.column(1 + len(self.scales) + number))
            if pa.types.is_list(column.type):
                lengths[:, number] = np.asarray(column.value_lengths().fill_null(0))
                column = column.flatten()
            flat.append(self._ids(column, number, counts))
            if self.weighted:
                weights.append(self._weights(table, number, len(flat[-1])))
        order = _row_major(lengths)
        writers["ids"].append(np.concatenate(flat)[order])
        writers["lengths"].append(lengths)
        if self.weighted:
            writers["weights"].append(np.concatenate(weights)[order])
        return lengths

    def _weights(self, table: pa.Table, number: int, count: int) -> np.ndarray:
        """Weights of a column's ids; 1 where the column has none."""
        if number not in self.weighted:
            return np.ones(count, dtype=np.float32)
        return np.asarray(one_array(table.column(self.weighted[number])).flatten())


def _row_major(lengths: np.ndarray) -> np.ndarray:
    """Positions of feature-major ids in row-major order."""
    num_rows, num_features = lengths.shape
    row = np.repeat(np.tile(np.arange(num_rows, dtype=np.int32), num_features), lengths.T.ravel())
    return np.argsort(row, kind="stable")
