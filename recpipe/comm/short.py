"""Sums over ranks with 16 bits on the wire and 32 in the sum, in two rounds: pieces to their owners, then sums to all.

gloo's own all-reduce in bfloat16 would also add in bfloat16, once more a rank. Here every term is rounded once and every sum
once; all ranks, the owner too, go on with the same rounded sum, so that copies of a weight stay equal bit for bit.
"""

from __future__ import annotations

from concurrent.futures import Future

import torch
import torch.distributed as dist

from recpipe.comm.lane import Lane, Pending
from recpipe.comm.traffic import Traffic


class ShortLane(Lane):
    """A lane whose `all_reduce` takes two rounds in `dtype`; a group of one sums nothing and rounds nothing.

    The lane's thread waits for the first round and starts the second, in the order of the calls, so that the second round too
    runs beside whatever the caller is at.

    Args:
        group: of the first round.
        sums: of the second, over the same ranks: rounds of several sums overtake each other, but never within a group.
        rank: of this process in them.
        world, traffic, purpose: as in `Lane`.
        dtype: on the wire.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        sums: dist.ProcessGroup | None,
        rank: int,
        world: int,
        traffic: Traffic,
        purpose: str,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(group, rank, world, traffic, purpose)
        self._sums, self._dtype = sums, dtype

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sums 1-D `tensor` over ranks, in place; nobody may touch it before it is waited for."""
        if self._group is None or self._sums is None:
            return super().all_reduce(tensor)
        one = _Sum(tensor, self.rank, self.world, self._dtype, self._group, self._sums)
        self._aside.run(one.start_second)
        return Pending(tensor, self._traffic.track(self._purpose, one, one.num_bytes), one.wire)


class _Sum:
    """One sum under way; has the `wait` of a `dist.Work`.

    Args:
        tensor: n elements; what lacks to n' = p x world is filled up on the wire.
        rank, world: of this process in both groups.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        rank: int,
        world: int,
        dtype: torch.dtype,
        group: dist.ProcessGroup,
        sums: dist.ProcessGroup,
    ) -> None:
        self._tensor, self._rank, self._sums = tensor, rank, sums
        self._piece = -(-tensor.numel() // world)
        self.wire = tensor.new_zeros(self._piece * world, dtype=dtype)
        self.wire[: tensor.numel()] = tensor
        self.num_bytes = 2 * (world - 1) * self._piece * self.wire.element_size()
        self._pieces_WP = self.wire.new_empty(world, self._piece)
        self._first = dist.all_to_all_single(self._pieces_WP.view(-1), self.wire, group=group, async_op=True)
        self._second: Future[dist.Work] = Future()

    def start_second(self) -> None:
        """Waits for the pieces that this rank owns the sum of, adds them, and sends the sum to all."""
        try:
            self._first.wait()
            start = self._rank * self._piece
            mine = self._tensor[start : start + self._piece]
            for rank, piece_P in enumerate(self._pieces_WP):
                if rank != self._rank:
                    mine += piece_P[: mine.numel()]
            sum_P = self._pieces_WP[self._rank]
            sum_P[: mine.numel()] = mine
            self._second.set_result(dist.all_gather_single(self.wire, sum_P, group=self._sums, async_op=True))
        except Exception as error:  # belongs to whoever waits for the sum
            self._second.set_exception(error)

    def wait(self) -> None:
        self._second.result().wait()
        self._tensor.copy_(self.wire[: self._tensor.numel()])

