"""The order of rows in an epoch: a function of seed and epoch alone, never of ranks or workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recpipe.data.config import SHUFFLES
from recpipe.data.permutation import key_of, permute
from recpipe.errors import ConfigError, nearest


@dataclass(frozen=True)
class Order:
    """Which stored row stands at each position of an epoch.

    Args:
        kind: none; window (file order, each window of `span` rows shuffled); block (blocks of `span` rows in random
            order, each shuffled); full (one permutation of all rows).
        num_rows: rows of the split.
        seed: seed of the run.
        span: rows of a window or block.
    """

    kind: str
    num_rows: int
    seed: int
    span: int = 65536

    def __post_init__(self) -> None:
        if self.kind not in SHUFFLES:
            raise ConfigError(f"data.shuffle={self.kind} is unknown; {nearest(self.kind, SHUFFLES)}")
        if self.span < 1:
            raise ConfigError(f"data.shuffle_rows={self.span} must be at least 1")

    def rows(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Stored rows at positions [start, stop) of `epoch`, int64."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self.kind == "none" or not len(positions):
            return positions
        key = key_of(self.seed, epoch)
        if self.kind == "full":
            return permute(positions, self.num_rows, key)
        return self._by_span(positions, key)

    def _by_span(self, positions: np.ndarray, key: int) -> np.ndarray:
        """Shuffle inside spans; for blocks the spans themselves change places, the short last one stays last."""
        spans, full = positions // self.span, self.num_rows // self.span
        result = np.empty_like(positions)
        for span in np.unique(spans):
            chosen = spans == span
            target = span
            if self.kind == "block" and span < full:
                target = permute(np.array([span]), full, key)[0]
            first = target * self.span
            size = int(min(self.span, self.num_rows - first))
            inside = permute(positions[chosen] - span * self.span, size, key_of(key, int(target)))
            result[chosen] = first + inside
        return result
