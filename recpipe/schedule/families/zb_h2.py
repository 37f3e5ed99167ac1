"""ZB-H2: twice the warm-up of 1F1B buys a window without bubble when F = I = W."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, linear, one_step
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches; the bubble formula holds from M >= 2p-1."""
    orders = [_order(rank, request) for rank in range(request.ranks)]
    return one_step("zb_h2", linear(request.ranks), request.microbatches, orders)


def _order(rank: int, request: Request) -> list[Action]:
    total = request.microbatches
    warm_up = min(2 * (request.ranks - 1 - rank) + 1, total)
    order = [act(Op.F, rank, m) for m in range(warm_up)]
    done = 0
    for m in range(total - warm_up):
        order.append(act(Op.I, rank, m))
        if m + 1 - done > 2 * rank:  # before the forward: this is what keeps memory at 2p-1
            order.append(act(Op.W, rank, done))
            done += 1
        order.append(act(Op.F, rank, m + warm_up))
    for m in range(total - warm_up, total):
        order += [act(Op.I, rank, m), act(Op.W, rank, done)]
        done += 1
    return order + [act(Op.W, rank, m) for m in range(done, total)]


FAMILY = Family("zb_h2", "zero bubble in the rank's own window, double memory", build)
