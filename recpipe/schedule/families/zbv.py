"""ZBV: the tower folded in a V, so that the last stage hands its gradient back on the rank of the first."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Orders, Request, act, folded, keep_first, one_step
from recpipe.schedule.ir import Action, Op, Program


class _Rank:
    """The order of one rank while it grows; the next microbatch of every (op, chunk) is counted."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)
        self.order: list[Action] = []
        self.count: dict[tuple[Op, int], int] = {}

    def done(self, op: Op, chunk: int) -> int:
        return self.count.get((op, chunk), 0)

    def add(self, times: int, *what: tuple[Op, int]) -> None:
        for _ in range(times):
            for op, chunk in what:
                m = self.done(op, chunk)
                self.order.append(act(op, self.stages[chunk], m))
                self.count[op, chunk] = m + 1


def build(request: Request) -> Program:
    """Any number of microbatches: below 2p-1 the order is built for 2p-1 and the padding dropped."""
    p = request.ranks
    padded = max(request.microbatches, 2 * p - 1)
    orders: Orders = [_order(rank, p, padded) for rank in range(p)]
    return one_step("zbv", folded(p), request.microbatches, keep_first(orders, request.microbatches))


def _order(rank: int, p: int, total: int) -> list[Action]:
    line = _Rank(rank, p)
    line.add(2 * (p - rank) - 1, (Op.F, 0))
    line.add(rank, (Op.F, 1), (Op.F, 0))
    line.add(p - rank, (Op.F, 1), (Op.I, 1), (Op.W, 1))
    while line.done(Op.F, 1) < total:
        line.add(min(1, total - line.done(Op.F, 0)), (Op.F, 0))
        line.add(1, (Op.I, 0), (Op.W, 0), (Op.F, 1), (Op.I, 1), (Op.W, 1))
    line.add(rank, (Op.I, 0), (Op.I, 1))
    line.add(p - rank, (Op.I, 0), (Op.W, 0))
    for chunk in (1, 0):
        line.add(total - line.done(Op.W, chunk), (Op.W, chunk))
    return line.order


FAMILY = Family("zbv", "zero bubble on a tower folded in a V", build)
