"""A lane: collectives of one purpose over one group, asynchronous, counted, and plain copies in a world of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from recpipe.comm.traffic import Traffic, Wait


@dataclass(frozen=True)
class Pending:
    """A message under way. `keep` holds the send buffer alive until it has left."""

    received: torch.Tensor
    done: Wait | None
    keep: torch.Tensor

    def wait(self) -> torch.Tensor:
        """Blocks until everything has arrived (CUDA: makes the current stream wait); gives the receive buffer."""
        if self.done is not None:
            self.done()
        return self.received


class Lane:
    """Collectives over one group. Sizes are elements, agreed beforehand: gloo does not notice a short message."""

    def __init__(
        self, group: dist.ProcessGroup | None, rank: int, world: int, traffic: Traffic, purpose: str
    ) -> None:
        self.rank, self.world = rank, world
        self._group = group
        self._traffic = traffic
        self._purpose = purpose

    def all_to_all(
        self,
        send: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        out: torch.Tensor | None = None,
    ) -> Pending:
        """Sends `send`, cut by `send_sizes`, one piece a rank; receives pieces of `receive_sizes` into `out`.

        Args:
            send: 1-D contiguous; ``send.numel() == sum(send_sizes)``.
            out: 1-D contiguous buffer of ``sum(receive_sizes)`` elements, made here if None.
        """
        if self._group is None:
            received = send if out is None else out.copy_(send)
            return Pending(received, None, send)
        if out is None:
            out = send.new_empty(sum(receive_sizes))
        sent = (send.numel() - send_sizes[self.rank]) * send.element_size()
        work = dist.all_to_all_single(
            out, send, list(receive_sizes), list(send_sizes), group=self._group, async_op=True
        )
        return Pending(out, self._traffic.track(self._purpose, work, sent), send)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sums `tensor` over ranks, in place."""
        if self._group is None:
            return Pending(tensor, None, tensor)
        # A ring all-reduce sends 2 (n-1)/n of the buffer from each rank.
        sent = 2 * tensor.numel() * tensor.element_size() * (self.world - 1) // self.world
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return Pending(tensor, self._traffic.track(self._purpose, work, sent), tensor)

    def count(self, purpose: str, num_bytes: int) -> None:
        """Adds bytes that another library sent for us."""
        self._traffic.add(purpose, num_bytes)
