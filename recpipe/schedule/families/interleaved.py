"""Interleaved 1F1B: each rank runs `chunks` pieces of the tower, which divides the bubble by their number."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, keep_first, looped, one_step, round_up
from recpipe.schedule.families.loops import backward_walk, forward_walk
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches. A short last round can deadlock, so it is padded and the padding dropped."""
    p, v = request.ranks, request.chunks
    padded = round_up(request.microbatches, p)
    orders = [_order(rank, p, v, padded) for rank in range(p)]
    kept = keep_first(orders, request.microbatches)
    return one_step("interleaved", looped(p, v), request.microbatches, kept)


def _order(rank: int, p: int, v: int, total: int) -> list[Action]:
    forwards = [act(Op.F, c * p + rank, m) for c, m in forward_walk(total, p, v)]
    backwards = [act(Op.B, c * p + rank, m) for c, m in backward_walk(total, p, v)]
    warm_up = min(2 * (p - 1 - rank) + (v - 1) * p, len(forwards))
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warm_up :]


FAMILY = Family("interleaved", "1F1B over several chunks a rank", build)
