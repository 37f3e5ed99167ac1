"""A lane: collectives of one purpose over one group, asynchronous, counted, and plain copies in a world of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
import torch.distributed as dist

from recpipe.comm.aside import Aside
from recpipe.comm.traffic import Traffic, Wait, Work

PIECE_BYTES = 1 << 19
"""A large message goes in pieces of this size. gloo sends a message of more than about 1.5 MB and the one that comes against
it often one after the other: twice the time on the wire (docs/log.md, 2026-11-30)."""


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
        self._aside = Aside(f"recpipe-{purpose}")

    def all_to_all(
        self,
        send: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        out: torch.Tensor | None = None,
        largest: int = 0,
    ) -> Pending:
        """Sends `send`, cut by `send_sizes`, one run a rank; receives runs of `receive_sizes` into `out`.

        Args:
            send: 1-D contiguous; ``send.numel() == sum(send_sizes)``.
            out: 1-D contiguous buffer of ``sum(receive_sizes)`` elements, made here if None.
            largest: elements that no run of any rank exceeds, the same number on every rank; 0: they are few.
        """
        if self._group is None:
            received = send if out is None else out.copy_(send)
            return Pending(received, None, send)
        if out is None:
            out = send.new_empty(sum(receive_sizes))
        sent = (send.numel() - send_sizes[self.rank]) * send.element_size()
        work: Work
        if largest * send.element_size() > PIECE_BYTES and dist.get_backend(self._group) == "gloo":
            work = _Pieces(self._group, self.rank, send.split(list(send_sizes)), out.split(list(receive_sizes)))
            self._aside.run(work.start)
        else:
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


class _Pieces:
    """An all-to-all of point-to-point messages under way; both ends of each know its size, and so its pieces.

    Args:
        group: of the lane.
        rank: of this process in it.
        sends, receives: a run for each rank.
    """

    def __init__(
        self, group: dist.ProcessGroup, rank: int, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor]
    ) -> None:
        self._group, self._rank, self._sends, self._receives = group, rank, sends, receives
        self._works: Future[list[dist.Work | None]] = Future()

    def start(self) -> None:
        """Issues every piece. All receives first: a piece then finds its place whenever it comes."""
        try:
            self._receives[self._rank].copy_(self._sends[self._rank])
            works = [dist.irecv(piece, peer, group=self._group) for peer, piece in self._cut(self._receives)]
            works += [dist.isend(piece, peer, group=self._group) for peer, piece in self._cut(self._sends)]
            self._works.set_result(works)
        except Exception as error:  # belongs to whoever waits for the message
            self._works.set_exception(error)

    def _cut(self, runs: Sequence[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
        """(global rank, piece): the first piece of each peer, the next rank's before all others; then the second ones."""
        size = PIECE_BYTES // runs[0].element_size()
        peers = [(self._rank + k) % len(runs) for k in range(1, len(runs))]
        for k in range(max((-(-runs[peer].numel() // size) for peer in peers), default=0)):
            for peer in peers:
                piece = runs[peer][k * size : (k + 1) * size]
                if piece.numel():
                    yield dist.get_global_rank(self._group, peer), piece

    def wait(self) -> None:
        for work in self._works.result():
            if work is not None:
                work.wait()
