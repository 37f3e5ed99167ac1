"""Looped breadth-first: all microbatches through one chunk before the next, forwards then backwards."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, looped, one_step
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches."""
    orders = [_order(rank, request) for rank in range(request.ranks)]
    return one_step("looped_bfs", looped(request.ranks, request.chunks), request.microbatches, orders)


def _order(rank: int, request: Request) -> list[Action]:
    stages = [chunk * request.ranks + rank for chunk in range(request.chunks)]
    numbers = range(request.microbatches)
    forwards = [act(Op.F, stage, m) for stage in stages for m in numbers]
    return forwards + [act(Op.B, stage, m) for stage in reversed(stages) for m in numbers]


FAMILY = Family("looped_bfs", "breadth first over several chunks a rank", build)
