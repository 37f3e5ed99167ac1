"""Stages that sleep their cost instead of computing, and tables without rows: the real executor on ranks that need no core.

Eight such ranks run on two cores, so that what is measured is the schedule, the messages and the executor itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recpipe.batch import Batch
from recpipe.comm import Groups
from recpipe.model import StepContext
from recpipe.model.block import Named
from recpipe.runtime.backward import Ready
from recpipe.runtime.stage import Activation


class _Size:
    """Layout of a message that is only a number of elements."""

    def __init__(self, row_numel: int) -> None:
        self._row_numel = row_numel

    def numel(self, num_rows: int) -> int:
        return num_rows * self._row_numel

    grad_numel = numel


class EmulatedStage:
    """Takes the place of `Stage`.

    Args:
        index, num_stages: which stage.
        forward, backward_input, backward_weights: seconds that each takes for one microbatch.
        row_numel: elements of a boundary for one row.
    """

    def __init__(
        self, index: int, num_stages: int, forward: float, backward_input: float, backward_weights: float, row_numel: int
    ) -> None:
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.entry = self.exit = _Size(row_numel)
        self._seconds = forward, backward_input, backward_weights
        self._row_numel = row_numel

    def forward_first(
        self,
        dense_BD: torch.Tensor,
        rows: Callable[[], torch.Tensor],
        labels_B: torch.Tensor,
        context: StepContext,
        global_rows: int,
    ) -> Activation:
        return self.forward(rows(), {}, context, global_rows)

    def input(self, message_M: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, Named]:
        return message_M, {}

    def forward(self, leaf: torch.Tensor, named: Named, context: StepContext, global_rows: int) -> Activation:
        time.sleep(self._seconds[0])
        message = torch.zeros(leaf.shape[0] if self.is_first else leaf.numel() // self._row_numel, self._row_numel).flatten()
        none = message[:0]
        return Activation(leaf, torch.zeros(1), none if self.is_last else message, none, none)

    def backward(self, kept: Activation, grad_M: torch.Tensor | None, ready: Ready) -> None:
        time.sleep(self._seconds[1] + self._seconds[2])
        ready(torch.zeros_like(kept.leaf))

    def backward_input(self, kept: Activation, grad_M: torch.Tensor | None, ready: Ready) -> None:
        time.sleep(self._seconds[1])
        kept.halves = []
        ready(torch.zeros_like(kept.leaf))

    def backward_weights(self, kept: Activation) -> None:
        time.sleep(self._seconds[2])


class EmulatedUpdates:
    """Takes the place of the trainer's dense side: nothing to reduce, nothing to update."""

    def check_loss(self, value: float, place: str) -> None: ...

    def backward_done(self, stage: int) -> None: ...

    def reduce(self, stage: int) -> None: ...

    def settle(self, step: int) -> bool:
        return True

    def optimize(self, stage: int, step: int, update: bool) -> None: ...

    def table_lr(self, step: int) -> float:
        return 0.0


@dataclass
class EmulatedTables:
    """Takes the place of `ShardedTables` for a program without tables: it only tells every rank how many rows there are.

    Args:
        groups: of this rank.
    """

    groups: Groups
    dtype: torch.dtype = torch.float32

    def send_deferred(self) -> None: ...

    def settle(self) -> None: ...

    def open(self, microbatches: Sequence[Batch], backward_position: Any, header: Sequence[int]) -> _Step:
        mine = torch.tensor(list(header))
        return _Step(microbatches, self.groups.gather_cpu(mine).view(self.groups.world, -1))


@dataclass
class _Step:
    microbatches: Sequence[Batch]
    headers: torch.Tensor

    def request(self) -> None: ...

    def pool(self, microbatch: int) -> torch.Tensor:
        return torch.zeros(self.microbatches[microbatch].num_rows, 1, 1)

    def add_gradient(self, microbatch: int, grad_BFD: torch.Tensor) -> None: ...
