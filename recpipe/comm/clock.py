"""How far this rank's clock is from rank 0's, by messages to and fro."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

_ROUNDS = 9


def clock_offset(rank: int, world: int, group: dist.ProcessGroup | None) -> float:
    """Seconds to add to `time.perf_counter` here to read rank 0's; collective.

    The round trip that took least is the best estimate: half of it is how old rank 0's answer is. On one machine all
    ranks share a clock, and what comes out is the error of the estimate: tens of microseconds.
    """
    if world == 1:
        return 0.0
    offset = 0.0
    for peer in range(1, world):
        if rank == 0:
            _answer(peer, group)
        elif rank == peer:
            offset = _ask(group)
    return offset


def _answer(peer: int, group: dist.ProcessGroup | None) -> None:
    box = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUNDS):
        dist.recv(box, peer, group=group)
        box[0] = time.perf_counter()
        dist.send(box, peer, group=group)


def _ask(group: dist.ProcessGroup | None) -> float:
    best, offset = float("inf"), 0.0
    box = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        dist.send(box, 0, group=group)
        dist.recv(box, 0, group=group)
        end = time.perf_counter()
        if end - start < best:
            best, offset = end - start, float(box[0]) - (start + end) / 2
    return offset
