"""Vocabularies that begin with those of an earlier preparation: known values keep their ids, new ones come behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recpipe.data.prepare.counts import KeyCounter
from recpipe.data.prepare.ranking import FeatureCounts
from recpipe.data.prepare.vocabulary import vocabulary_files

Known = tuple[np.ndarray, np.ndarray]


def append_keys(
    counter: KeyCounter, known: Known, num_ids: int, directory: Path, feature: str, threshold: int, max_ids: int
) -> FeatureCounts:
    """Write the vocabulary of a feature: the known keys, then those that are frequent enough, most frequent first.

    Args:
        counter: counts of training rows.
        known: sorted keys and the id of each.
        num_ids: of the known vocabulary.
        directory: where the vocabulary goes.
        feature: its name.
        threshold: new keys seen less often share id 1.
        max_ids: largest table, 0 for no limit; known keys stay in any case.
    """
    keys, counts, lookups, covered, distinct = _new_keys(counter, known, threshold)
    order = np.lexsort((keys, -counts))[: max(0, max_ids - num_ids) if max_ids else None]
    keys, counts = keys[order], counts[order]
    ids = num_ids + np.arange(len(keys), dtype=np.int64)
    # A vocabulary without keys does not know their type.
    old = known[0] if len(known[0]) else known[0].astype(keys.dtype)
    _write(directory, feature, (np.concatenate([old, keys]), np.concatenate([known[1], ids])))
    covered += int(counts.sum())
    at_edge = int(counts[counts == threshold].sum())
    expected = round((lookups - covered + at_edge) / max(lookups, 1), 6)
    return FeatureCounts(num_ids + len(keys), distinct, lookups, covered, {}, expected)


def _new_keys(counter: KeyCounter, known: Known, threshold: int) -> tuple[np.ndarray, np.ndarray, int, int, int]:
    """Keys without an id that are frequent enough, and their counts; lookups, those of known keys, distinct keys."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    lookups = covered = distinct = 0
    for keys, counts in counter.ranges():
        is_known = contains(known[0], keys)
        lookups, distinct = lookups + int(counts.sum()), distinct + len(keys)
        covered += int(counts[is_known].sum())
        chosen = ~is_known & (counts >= threshold)
        found.append((keys[chosen], counts[chosen]))
    if not found:
        found = [(known[0][:0], np.zeros(0, dtype=np.int64))]
    keys, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return keys, counts, lookups, covered, distinct


def contains(sorted_keys: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys are among the sorted ones."""
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=bool)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.asarray(sorted_keys[at] == keys)


def _write(directory: Path, feature: str, vocabulary: Known) -> None:
    """Both files, in ascending order of keys and with the types that `rank_keys` takes."""
    order = np.argsort(vocabulary[0], kind="stable")
    keys, ids = vocabulary[0][order], vocabulary[1][order]
    ids = ids.astype(np.int64 if ids.max(initial=0) >= 2**31 - 1 else np.int32)
    for path, values in zip(vocabulary_files(directory, feature), (keys, ids), strict=True):
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            header = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(values.tobytes())
        partial.replace(path)
