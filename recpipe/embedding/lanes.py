"""What the embedding needs of a communication layer: three lanes, given from outside (`recpipe.comm.Lane` is one)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class PendingMessage(Protocol):
    """A message under way."""

    def wait(self) -> torch.Tensor: ...


class LaneLike(Protocol):
    """Asynchronous collectives of one purpose, in the same order on every rank."""

    rank: int
    world: int

    def all_to_all(
        self,
        send: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        out: torch.Tensor | None = None,
        largest: int = 0,
    ) -> PendingMessage: ...

    def all_reduce(self, tensor: torch.Tensor) -> PendingMessage: ...

    def count(self, purpose: str, num_bytes: int) -> None: ...


@dataclass(frozen=True)
class Lanes:
    """Lanes of their own for ids, rows and row gradients, so that none waits behind another."""

    ids: LaneLike
    rows: LaneLike
    gradients: LaneLike
