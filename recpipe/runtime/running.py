"""A step under way on one rank: its rows, its window over the tables, and everything that waits between two actions.

Each store is keyed by (replica, stage, microbatch) and is empty when the step ends: what was made was used, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from recpipe.batch import Batch
from recpipe.comm import Pending
from recpipe.embedding.tables import TablesStep
from recpipe.errors import ScheduleError
from recpipe.runtime.stage import Activation

Key = tuple[int, int, int]
"""Replica, stage, microbatch."""


@dataclass(frozen=True)
class Span:
    """Rows of one microbatch: global position of the first in the epoch, and how many."""

    first_row: int
    num_rows: int


@dataclass
class StepResult:
    """What a step tells; of one that was left out as not finite, no loss and no scores.

    Args:
        loss: this rank's share of the step's loss (shares add up to the mean over the global batch).
        global_rows: rows of the step over all ranks.
        logits_B, labels_B, rows_B: scores, labels and global positions of the rows whose loss this rank made.
        num_dropped: rows that this rank read and a policy dropped.
        left_out: nothing was updated, because something was not finite; the same on every rank.
    """

    loss: float
    global_rows: int
    logits_B: torch.Tensor
    labels_B: torch.Tensor
    rows_B: torch.Tensor
    num_dropped: int
    left_out: bool = False


@dataclass
class RunningStep:
    """One step.

    Args:
        number: counted from where the run of steps began.
        batch: rows that this rank reads; none where it is no consumer.
        pieces: the same rows by microbatch number.
        slots: place of each microbatch in the order in which rows travel.
        tables: the window.
        sound: whether it may update; None until all gradients of this rank are there.
    """

    number: int
    batch: Batch
    pieces: Sequence[Batch]
    slots: Sequence[int]
    tables: TablesStep
    messages: dict[Key, Pending | torch.Tensor] = field(default_factory=dict)
    gradients: dict[Key, Pending | torch.Tensor] = field(default_factory=dict)
    activations: dict[Key, Activation] = field(default_factory=dict)
    outgoing: dict[Key, torch.Tensor] = field(default_factory=dict)
    returning: dict[Key, torch.Tensor] = field(default_factory=dict)
    sent: list[Pending] = field(default_factory=list)
    loss: float = 0.0
    sound: bool | None = None
    scored: list[tuple[Span, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def global_rows(self) -> int:
        """Rows of the step over all consumers; known once ids were requested."""
        return int(self.tables.headers[:, 0].sum())

    def span(self, consumer_rank: int, microbatch: int) -> Span:
        """Rows of a microbatch that `consumer_rank` read."""
        num_rows, first_row = self.tables.headers[consumer_rank].tolist()
        start, stop = (num_rows * m // len(self.pieces) for m in (microbatch, microbatch + 1))
        return Span(first_row + start, stop - start)

    def close(self) -> StepResult:
        """Waits for the last messages to leave.

        Raises:
            ScheduleError: something was made and never used.
        """
        for pending in self.sent:
            pending.wait()
        for name in ("messages", "gradients", "activations", "outgoing", "returning"):
            left = getattr(self, name)
            if left:
                raise ScheduleError(f"step {self.number} has ended with {name} left over: {sorted(left)}")
        return self._result()

    def _result(self) -> StepResult:
        none, left_out = torch.empty(0), self.sound is False
        scored = [] if left_out else self.scored
        logits = [logits_B for _, logits_B, _ in scored]
        labels = [labels_B for _, _, labels_B in scored]
        rows = [torch.arange(span.first_row, span.first_row + span.num_rows) for span, _, _ in scored]
        return StepResult(
            0.0 if left_out else self.loss,
            self.global_rows,
            torch.cat(logits) if logits else none,
            torch.cat(labels) if labels else none,
            torch.cat(rows) if rows else none.long(),
            self.batch.num_dropped,
            left_out,
        )
