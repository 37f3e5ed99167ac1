"""Ids by frequency from counted keys, in two passes over the sorted keys and no sort of the whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from recpipe.data.prepare.counts import KeyCounter
from recpipe.data.prepare.vocabulary import FIRST, vocabulary_files
from recpipe.errors import DataError
from recpipe.records import record
from recpipe.untrusted import Source

TOP = (1, 10, 100, 1000)


@dataclass(frozen=True)
class FeatureCounts:
    """What counting found out about one feature, on training rows.

    Args:
        num_ids: ids lie in [0, num_ids).
        distinct: distinct values.
        lookups: values that are not missing.
        covered: lookups of values with an id of their own.
        top_share: share of lookups of the k most frequent values, by k.
        expected_unseen: share of lookups whose value would have no id if this one lookup were not there: the share to
            expect in other rows of the same kind.
    """

    num_ids: int
    distinct: int
    lookups: int
    covered: int
    top_share: dict[str, float]
    expected_unseen: float = 0.0


def rank_keys(counter: KeyCounter, directory: Path, feature: str, threshold: int, max_ids: int) -> FeatureCounts:
    """Write the vocabulary of a feature: most frequent first, ties by key.

    Args:
        counter: counts of training rows.
        directory: where the vocabulary goes.
        feature: its name.
        threshold: fewer occurrences share id 1.
        max_ids: largest table, 0 for no limit.
    """
    values, sizes, distinct = _histogram(counter)
    alone = int((values * sizes)[values <= threshold].sum())
    kept = values >= threshold
    values, sizes = values[kept], sizes[kept]
    # An id is: ids of all larger counts, plus the place among keys of the same count.
    first = FIRST + np.concatenate([[0], np.cumsum(sizes[::-1])])[:-1][::-1]
    total = int(sizes.sum())
    limit = min(FIRST + total, max_ids) if max_ids else FIRST + total
    covered = _write(counter, directory, feature, values, first, limit)
    lookups = int(sum(int(counts.sum()) for _, counts in counter.ranges()))
    unseen = round(max(alone, lookups - covered) / max(lookups, 1), 6)
    return FeatureCounts(limit, distinct, lookups, covered, _top_share(values, sizes, lookups), unseen)


def _histogram(counter: KeyCounter) -> tuple[np.ndarray, np.ndarray, int]:
    """Distinct counts ascending, how many keys have each, and the number of keys."""
    sizes: dict[int, int] = {}
    for _, counts in counter.ranges():
        for value, size in zip(*np.unique(counts, return_counts=True), strict=True):
            sizes[int(value)] = sizes.get(int(value), 0) + int(size)
    values = np.array(sorted(sizes), dtype=np.int64)
    return values, np.array([sizes[int(value)] for value in values], dtype=np.int64), sum(sizes.values())


def _write(
    counter: KeyCounter, directory: Path, feature: str, values: np.ndarray, first: np.ndarray, limit: int
) -> int:
    """Write keys and ids in ascending order of keys; returns the lookups they cover."""
    used = np.zeros(len(values), dtype=np.int64)
    covered, partials = 0, [path.with_suffix(".partial") for path in vocabulary_files(directory, feature)]
    count = max(0, limit - FIRST)
    with partials[0].open("wb") as keys_file, partials[1].open("wb") as ids_file:
        dtype = None
        for keys, counts in counter.ranges():
            if dtype is None:
                dtype = keys.dtype
                _headers(keys_file, ids_file, dtype, count)
            kept = counts >= values[0] if len(values) else np.zeros(len(counts), dtype=bool)
            keys, counts = keys[kept], counts[kept]
            group = np.searchsorted(values, counts)
            ids = first[group] + used[group] + _place_in_group(group)
            used += np.bincount(group, minlength=len(values))
            inside = ids < limit
            keys_file.write(keys[inside].tobytes())
            ids_file.write(ids[inside].astype(np.int64 if limit > 2**31 else np.int32).tobytes())
            covered += int(counts[inside].sum())
        if dtype is None:
            _headers(keys_file, ids_file, np.dtype(np.uint32), 0)
    for partial, path in zip(partials, vocabulary_files(directory, feature), strict=True):
        os.replace(partial, path)
    return covered


def _headers(keys_file: BinaryIO, ids_file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """Headers of the two .npy files."""
    ids_dtype = np.dtype(np.int64 if count + FIRST > 2**31 else np.int32)
    for file, kind in ((keys_file, dtype), (ids_file, ids_dtype)):
        header = {"descr": kind.str, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)


def _place_in_group(group: np.ndarray) -> np.ndarray:
    """How many earlier elements have the same group."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else ordered
    sizes = np.diff(np.concatenate([starts, [len(ordered)]]))
    places = np.empty(len(group), dtype=np.int64)
    places[order] = np.arange(len(group)) - np.repeat(starts, sizes)
    return places


def _top_share(values: np.ndarray, sizes: np.ndarray, lookups: int) -> dict[str, float]:
    """Share of lookups of the k most frequent values."""
    shares = {}
    for k in TOP:
        before = np.concatenate([[0], np.cumsum(sizes[::-1])])[:-1]
        taken = np.clip(k - before, 0, sizes[::-1])
        shares[str(k)] = round(float((taken * values[::-1]).sum()) / max(lookups, 1), 6)
    return shares


def save_counts(path: Path, counts: FeatureCounts) -> None:
    """Remember that this feature is done."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(counts)))
    os.replace(partial, path)


def load_counts(path: Path) -> FeatureCounts:
    """What `save_counts` wrote."""
    return record(Source(path, DataError, "remove the unfinished directory").json(), FeatureCounts)
