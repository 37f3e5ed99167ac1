"""ZB-H1: 1F1B with the backward split, weight halves moved into the bubble, memory as 1F1B on rank 0."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, linear, one_step
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches; the bubble formula holds from M >= p."""
    orders = [_order(rank, request) for rank in range(request.ranks)]
    return one_step("zb_h1", linear(request.ranks), request.microbatches, orders)


def _order(rank: int, request: Request) -> list[Action]:
    total = request.microbatches
    warm_up = min(request.ranks - 1 - rank, total)
    order = [act(Op.F, rank, m) for m in range(warm_up)]
    done = 0
    for m in range(total - warm_up):
        order += [act(Op.F, rank, m + warm_up), act(Op.I, rank, m)]
        if m + 1 - done > rank:
            order.append(act(Op.W, rank, done))
            done += 1
    for m in range(total - warm_up, total):
        order += [act(Op.I, rank, m), act(Op.W, rank, done)]
        done += 1
    return order + [act(Op.W, rank, m) for m in range(done, total)]


FAMILY = Family("zb_h1", "zero bubble at the memory of 1F1B", build)
