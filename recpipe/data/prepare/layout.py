"""Where each usable row of each chunk goes: computed from counts, never stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recpipe.data.prepare.assign import SPLITS, TEST, TRAIN, VALID, Splitter
from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.units import Unit

ROLES = {"valid": VALID, "test": TEST}


@dataclass(frozen=True)
class Layout:
    """All chunks in order, and the rule that splits them.

    Args:
        sources: the input files.
        units: their chunks, in order of file and position.
        splitter: the rule for rows of main files.
        firsts: for each chunk, the position of its first row among main rows (fraction) or in its file (days).
        counts: chunks x splits, how many rows of each chunk go to each split.
    """

    sources: list[Source]
    units: list[Unit]
    splitter: Splitter
    firsts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, sources: list[Source], units: list[Unit], splitter: Splitter) -> Layout:
        """Count the rows of each chunk and split."""
        firsts = _firsts(sources, units, splitter.kind)
        layout = cls(sources, units, splitter, firsts, np.zeros((len(units), len(SPLITS)), dtype=np.int64))
        for number in range(len(units)):
            layout.counts[number] = np.bincount(layout.splits(number), minlength=len(SPLITS))
        return layout

    def splits(self, number: int) -> np.ndarray:
        """uint8 split of each row of a chunk."""
        unit = self.units[number]
        role = self.sources[unit.source].role
        if role in ROLES:
            return np.full(unit.rows, ROLES[role], dtype=np.uint8)
        first = int(self.firsts[number])
        if self.splitter.kind == "fraction":
            return self.splitter.main_rows(first, unit.rows)
        if unit.source != _last_main(self.sources):
            return np.full(unit.rows, TRAIN, dtype=np.uint8)
        return self.splitter.last_day(first, unit.rows, self._rows_of(unit.source))

    def _rows_of(self, source: int) -> int:
        """Usable rows of an input file."""
        return sum(unit.rows for unit in self.units if unit.source == source)

    def num_rows(self, split: int) -> int:
        """Rows of a split."""
        return int(self.counts[:, split].sum())

    def pieces(self, split: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Chunks that hold rows [start, stop) of a split: (chunk, first, last) in rows of the split in the chunk."""
        after = np.cumsum(self.counts[:, split])
        before = after - self.counts[:, split]
        touched = np.flatnonzero((after > start) & (before < stop))
        return [(int(n), int(max(start - before[n], 0)), int(min(stop, after[n]) - before[n])) for n in touched]


def _firsts(sources: list[Source], units: list[Unit], kind: str) -> np.ndarray:
    """Position of each chunk's first row, among all main rows or (by days) in its own file."""
    firsts = np.zeros(len(units), dtype=np.int64)
    position, current = 0, -1
    for number, unit in enumerate(units):
        if kind == "days" and unit.source != current:
            position, current = 0, unit.source
        firsts[number] = position
        if sources[unit.source].role == "main":
            position += unit.rows
    return firsts


def _last_main(sources: list[Source]) -> int:
    """Number of the last main file."""
    return max(number for number, source in enumerate(sources) if source.role == "main")
