"""1F1B: after a warm-up of p-1-r forwards, rank r alternates forward and backward."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, linear, one_step
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches."""
    orders = [_order(rank, request) for rank in range(request.ranks)]
    return one_step("1f1b", linear(request.ranks), request.microbatches, orders)


def _order(rank: int, request: Request) -> list[Action]:
    total = request.microbatches
    warm_up = min(request.ranks - 1 - rank, total)
    order = [act(Op.F, rank, m) for m in range(warm_up)]
    for m in range(total - warm_up):
        order += [act(Op.F, rank, m + warm_up), act(Op.B, rank, m)]
    return order + [act(Op.B, rank, m) for m in range(total - warm_up, total)]


FAMILY = Family("1f1b", "one forward, one backward", build)
