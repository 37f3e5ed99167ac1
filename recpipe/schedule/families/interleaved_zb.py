"""Interleaved zero bubble: ZB-H1 over several chunks a rank.

Warm-up is (v-1)p + p-1-r chunks: a forward meets its backward after p-1-r pairs, as in ZB-H1, and the earlier chunks
add one round each. A rank then never holds more than p full microbatches.
"""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, looped, one_step
from recpipe.schedule.families.loops import backward_walk, forward_walk
from recpipe.schedule.ir import Action, Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches; the last round may be short."""
    p, v = request.ranks, request.chunks
    orders = [_order(rank, p, v, request.microbatches) for rank in range(p)]
    return one_step("interleaved_zb", looped(p, v), request.microbatches, orders)


def _order(rank: int, p: int, v: int, total: int) -> list[Action]:
    forwards = [act(Op.F, c * p + rank, m) for c, m in forward_walk(total, p, v)]
    walk = [(c * p + rank, m) for c, m in backward_walk(total, p, v)]
    inputs = [act(Op.I, stage, m) for stage, m in walk]
    weights = [act(Op.W, stage, m) for stage, m in walk]
    warm_up = min((v - 1) * p + p - 1 - rank, len(forwards))
    order, done = forwards[:warm_up], 0
    for k, half in enumerate(inputs):
        order += forwards[warm_up + k : warm_up + k + 1] + [half]
        if warm_up + k >= len(forwards) or k + 1 - done > rank:
            order.append(weights[done])
            done += 1
    return order + weights[done:]


FAMILY = Family("interleaved_zb", "ZB-H1 over several chunks a rank", build)
