"""Mean and deviation of a stream, bit for bit the same however the stream is cut."""

from __future__ import annotations

import math

import numpy as np

BLOCK = 1 << 16


class Moments:
    """Sums over blocks of a fixed number of values, so that the cuts of the input do not show in the last bits."""

    def __init__(self) -> None:
        self._pending: list[np.ndarray] = []
        self._held = 0
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: np.ndarray) -> None:
        """Take these values in."""
        self._pending.append(values)
        self._held += len(values)
        if self._held >= BLOCK:
            joined = np.concatenate(self._pending)
            whole = len(joined) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._absorb(joined[start : start + BLOCK])
            self._pending, self._held = [joined[whole:]], len(joined) - whole

    def _absorb(self, values: np.ndarray) -> None:
        """Join one block (Chan's formula)."""
        block = values.astype(np.float64)
        count, mean = len(block), float(block.mean())
        total, delta = self._count + count, mean - self._mean
        self._squares += float(((block - mean) ** 2).sum()) + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count = total

    def result(self) -> tuple[float, float]:
        """Mean and standard deviation of all values; (0, 0) without any."""
        if self._held:
            self._absorb(np.concatenate(self._pending))
            self._pending, self._held = [], 0
        return self._mean, math.sqrt(self._squares / self._count) if self._count else 0.0
