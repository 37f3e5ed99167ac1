"""How often each key occurs, in bounded memory: sorted runs, spilled to disk when they grow, merged by key range."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

Counted = tuple[np.ndarray, np.ndarray]
FIRST_COMPACTION = 4 << 20


class KeyCounter:
    """Counts keys of one feature.

    Args:
        directory: where runs go that do not fit in memory.
        budget: bytes that may be held.
    """

    def __init__(self, directory: Path, budget: int) -> None:
        self._directory, self._budget = directory, budget
        self._pending: list[Counted] = []
        self._held = 0
        self._allowed = self._least = min(FIRST_COMPACTION, budget // 3)
        self._runs = 0

    def add(self, keys: np.ndarray) -> None:
        """Count these keys."""
        if not len(keys):
            return
        codes, distinct = pd.factorize(keys)
        self._pending.append((distinct, np.bincount(codes, minlength=len(distinct)).astype(np.int64)))
        self._held += distinct.nbytes + 8 * len(distinct)
        if self._held > self._allowed:
            self._compact()

    def _compact(self) -> None:
        """Join what is pending; spill it when joining did not help."""
        joined = _join(self._pending)
        self._pending, self._held = [joined], joined[0].nbytes + joined[1].nbytes
        if self._held > self._budget // 6:
            self._directory.mkdir(parents=True, exist_ok=True)
            for name, part in zip(("keys", "counts"), joined, strict=True):
                np.save(self._directory / f"{self._runs:05d}.{name}.npy", part)
            self._runs += 1
            self._pending, self._held = [], 0
        # Joining needs a second copy and a sort, hence a third of the budget at most.
        self._allowed = min(max(self._least, 2 * self._held), self._budget // 3)

    def ranges(self) -> Iterator[Counted]:
        """(sorted keys, counts), range after range in ascending order; can be asked for again."""
        last = _join(self._pending) if self._pending else None
        if not self._runs:
            if last is not None:
                yield last
            return
        runs = [_load(self._directory, number) for number in range(self._runs)]
        if last is not None:
            runs.append(last)
        yield from _merge(runs, max(1, self._budget // 3 // 16))

    def close(self) -> None:
        """Remove the runs."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _join(parts: list[Counted]) -> Counted:
    """One sorted run of several."""
    if len(parts) == 1 and _is_sorted(parts[0][0]):
        return parts[0]
    keys = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    order = np.argsort(keys)
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts)


def _is_sorted(keys: np.ndarray) -> bool:
    """Strictly ascending."""
    return bool((keys[1:] > keys[:-1]).all())


def _load(directory: Path, number: int) -> Counted:
    """A spilled run, mapped."""
    keys, counts = (np.load(directory / f"{number:05d}.{name}.npy", mmap_mode="r") for name in ("keys", "counts"))
    return keys, counts


def _merge(runs: list[Counted], step: int) -> Iterator[Counted]:
    """Merge sorted runs, about `step` entries at a time."""
    at = [0] * len(runs)
    each = max(1, step // len(runs))
    while any(position < len(keys) for position, (keys, _) in zip(at, runs, strict=True)):
        limits = [keys[min(p + each, len(keys)) - 1] for p, (keys, _) in zip(at, runs, strict=True) if p < len(keys)]
        limit = min(limits)
        parts: list[Counted] = []
        for number, (keys, counts) in enumerate(runs):
            window = np.asarray(keys[at[number] : at[number] + each])
            taken = int(np.searchsorted(window, limit, side="right"))
            if taken:
                parts.append((window[:taken], np.asarray(counts[at[number] : at[number] + taken])))
                at[number] += taken
        yield _join(parts)
