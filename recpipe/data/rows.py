"""Rows as they are stored: row-major, numpy, by position. No torch here: preparing files needs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Rows of a store, row-major.

    Args:
        dense: float32, rows x dense columns.
        ids: integers; rows x features where every feature is one-hot, else flat: all ids of row 0 (feature 0,
            feature 1, ...), then row 1, ...
        labels: float32, one a row.
        lengths: int32, rows x features; None where every feature is one-hot.
        weights: float32, one an id; None where no feature is weighted.
    """

    dense: np.ndarray
    ids: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray | None = None
    weights: np.ndarray | None = None


class Store(Protocol):
    """Rows of one split, by their stored position."""

    @property
    def num_rows(self) -> int:
        """Rows of the split."""

    def gather(self, rows: np.ndarray) -> Rows:
        """The rows at these stored positions, in the order given."""


@dataclass(frozen=True)
class MemoryStore:
    """A store whose rows lie in memory (or in arrays that behave so)."""

    all_rows: Rows
    offsets: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Rows) -> MemoryStore:
        """A store of these rows; finds out where each row's ids begin."""
        offsets = None
        if rows.lengths is not None:
            offsets = np.concatenate([[0], np.cumsum(rows.lengths.sum(axis=1, dtype=np.int64))])
        return cls(rows, offsets)

    @property
    def num_rows(self) -> int:
        return len(self.all_rows.labels)

    def gather(self, rows: np.ndarray) -> Rows:
        """The rows at these stored positions, in the order given."""
        source = self.all_rows
        dense, labels = source.dense.take(rows, axis=0), source.labels.take(rows)
        if source.lengths is None or self.offsets is None:
            return Rows(dense, source.ids.take(rows, axis=0), labels)
        index = spans(self.offsets[rows], self.offsets[rows + 1])
        weights = None if source.weights is None else source.weights.take(index)
        return Rows(dense, source.ids.take(index), labels, source.lengths.take(rows, axis=0), weights)


def spans(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """All positions of the spans [start, stop), one span after the other."""
    counts = stops - starts
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
