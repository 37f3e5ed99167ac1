"""Parse and count: the phases that read. Each leaves a file for every finished piece and skips those it finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recpipe.data.encoding import Encoding
from recpipe.data.prepare.assign import TRAIN
from recpipe.data.prepare.chunks import Reader
from recpipe.data.prepare.columns import dense_of, keys_of, one_array
from recpipe.data.prepare.counts import KeyCounter
from recpipe.data.prepare.crc import joined_crc
from recpipe.data.prepare.growth import append_keys
from recpipe.data.prepare.layout import Layout
from recpipe.data.prepare.meter import Meter
from recpipe.data.prepare.parse import parse_chunk
from recpipe.data.prepare.pool import run_all
from recpipe.data.prepare.ranking import FeatureCounts, load_counts, rank_keys, save_counts
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.spread import ColumnSpread
from recpipe.data.prepare.units import Unit, read_unit, unit_path, write_unit


@dataclass(frozen=True)
class Parsed:
    """What parsing found: the chunks of all files, and the checksum of each file's text."""

    units: list[Unit]
    checksums: list[int]


def parse_sources(readers: list[Reader], formats: list[Format], directory: Path, threads: int, meter: Meter) -> Parsed:
    """Parse all files, several at a time, chunk by chunk.

    Args:
        readers: in order of file and position.
        formats: how to read each file.
        directory: where parsed chunks go.
        threads: chunks in memory at a time.
        meter: told the lines of each chunk.
    """
    for number in range(len(readers)):
        (directory / f"{number:04d}").mkdir(parents=True, exist_ok=True)
    failed = threading.Event()

    def work(worker: int) -> None:
        try:
            while (number := _next_reader(readers, worker)) is not None and not failed.is_set():
                _parse_next(readers[number], number, formats, directory, meter)
        except BaseException:
            failed.set()
            raise

    run_all(work, range(threads), threads)
    units = [
        read_unit(unit_path(directory, number, index), reader.source)
        for number, reader in enumerate(readers)
        for index in range(reader.num_chunks)
    ]
    return Parsed(units, [_checksum(readers, source) for source in range(len(formats))])


def _checksum(readers: list[Reader], source: int) -> int:
    """Of the text of a file."""
    return joined_crc((reader.checksum, reader.num_bytes) for reader in readers if reader.source == source)


def _next_reader(readers: list[Reader], worker: int) -> int | None:
    """An unfinished reader: rather one that no other thread reads from at the moment."""
    open_ones = [number for number, reader in enumerate(readers) if not reader.finished]
    free = [number for number in open_ones if not readers[number].lock.locked()]
    choice = free or open_ones
    return choice[worker % len(choice)] if choice else None


def _parse_next(reader: Reader, number: int, formats: list[Format], directory: Path, meter: Meter) -> None:
    """Take the next chunk of a reader and parse it, unless that was done before."""
    with reader.lock:
        chunk = reader.next()
    if chunk is None:
        return
    path = unit_path(directory, number, chunk.index)
    if not path.exists():
        write_unit(path, parse_chunk(chunk, formats[reader.source]))
    meter.add(0, read_unit(path, reader.source).lines)


def count_features(
    layout: Layout,
    columns: list[int],
    directory: Path,
    thresholds: list[int],
    max_ids: int,
    budget: int,
    threads: int,
    meter: Meter,
    known: Encoding | None = None,
) -> list[FeatureCounts]:
    """The vocabulary of each categorical column, on training rows.

    Args:
        layout: rows by chunk and split.
        columns: numbers of the categorical columns in a raw table.
        directory: where vocabularies go.
        thresholds: see `rank_keys`; one a column.
        max_ids: see `rank_keys`.
        budget: bytes for counting, over all threads.
        threads: columns at a time.
        meter: told the rows of each chunk, for each column.
        known: vocabularies to add to; None: new ones.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def count(number: int) -> FeatureCounts:
        name = f"{number:03d}"
        done = directory / f"{name}.json"
        if done.exists():
            return load_counts(done)
        counter = KeyCounter(directory / f"{name}.runs", budget // threads)
        for keep, unit in _train_chunks(layout):
            counter.add(keys_of(unit.table([columns[number]]).column(0), keep))
            meter.add(unit.rows, unit.rows * (number == 0))
        if known is None:
            counts = rank_keys(counter, directory, name, thresholds[number], max_ids)
        else:
            size = known.manifest["features"][number]["num_ids"]
            counts = append_keys(counter, known.vocabulary(number), size, directory, name, thresholds[number], max_ids)
        counter.close()
        save_counts(done, counts)
        return counts

    return run_all(count, range(len(columns)), threads)


def measure_dense(layout: Layout, spreads: list[ColumnSpread], threads: int) -> None:
    """Adds the values of every dense column, the first columns of a raw table behind the label, to its spread.

    Args:
        spreads: one a dense column; the same in the end however the input is cut.
        threads: columns at a time.
    """

    def measure(first: int) -> None:
        mine = range(first, len(spreads), threads)
        for number, unit in enumerate(layout.units):
            all_train = int(layout.counts[number, TRAIN]) == unit.rows
            train = None if all_train else layout.splits(number) == TRAIN
            table = unit.table([1 + column for column in mine])
            for place, column in enumerate(mine):
                array = one_array(table.column(place))
                missing = np.asarray(array.is_null()) if array.null_count else None
                spreads[column].add(dense_of(array, 0.0), missing, train)

    run_all(measure, range(min(threads, len(spreads))), threads)


def _train_chunks(layout: Layout) -> Iterator[tuple[np.ndarray | None, Unit]]:
    """Chunks with training rows, and which rows these are (None: all)."""
    for number, unit in enumerate(layout.units):
        count = int(layout.counts[number, TRAIN])
        if count:
            yield (None if count == unit.rows else layout.splits(number) == TRAIN), unit
