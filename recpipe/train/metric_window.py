"""Lifetime and windowed metrics of a training run, from sums alone.

The window is a ring of buckets of rows. Where a step falls is decided by global rows, so the rings of all ranks agree,
and adding up the states of all ranks gives the state of the run.
"""

from __future__ import annotations

import torch

from recpipe.train.metrics import SUM_NAMES, Report, metric_sums, report


class MetricWindow:
    """Sums of this rank's rows: over the run, and over about the last ``window_rows`` global rows.

    Args:
        window_rows: length of the window; in reports it holds between this less one bucket and this.
        num_buckets: buckets of the ring.
    """

    def __init__(self, window_rows: int = 10_000_000, num_buckets: int = 100) -> None:
        assert window_rows >= 1 and num_buckets >= 1
        self.state = torch.zeros(1 + num_buckets, len(SUM_NAMES), dtype=torch.float64)
        self.bucket_rows = self._bucket_rows(window_rows)
        self.global_rows = 0

    def update(self, logits_B: torch.Tensor, labels_B: torch.Tensor, global_rows: int) -> None:
        """Adds this rank's rows, maybe none, of a step of ``global_rows`` rows over all ranks. Every rank calls it."""
        self._advance(global_rows)
        sums_S = metric_sums(logits_B, labels_B)
        self.state[0] += sums_S
        self.state[self._slot(self.global_rows)] += sums_S

    def reports(self, state: torch.Tensor | None = None) -> Report:
        """``lifetime_ne, window_ne, ...`` of this rank's state, or of ``state``, the sum of all ranks' states."""
        state = self.state if state is None else state
        parts = {"lifetime": report(state[0]), "window": report(state[1:].sum(dim=0))}
        return {f"{part}_{key}": value for part, values in parts.items() for key, value in values.items()}

    def resume(self, global_rows: int, window_rows: int) -> None:
        """Goes on at a row, with `state` as it was there; a window that had another length begins anew.

        Args:
            global_rows: rows seen by then.
            window_rows: length that the window had.
        """
        self.global_rows = global_rows
        if self._bucket_rows(window_rows) != self.bucket_rows:
            self.state[1:] = 0.0

    def _bucket_rows(self, window_rows: int) -> int:
        return max(window_rows // (len(self.state) - 1), 1)

    def _advance(self, global_rows: int) -> None:
        """Moves to where the step ends and clears the buckets entered on the way."""
        first = self.global_rows // self.bucket_rows + 1
        self.global_rows += global_rows
        last = self.global_rows // self.bucket_rows
        num_buckets = len(self.state) - 1
        for bucket in range(max(first, last - num_buckets + 1), last + 1):
            self.state[1 + bucket % num_buckets] = 0.0

    def _slot(self, row: int) -> int:
        return 1 + row // self.bucket_rows % (len(self.state) - 1)
