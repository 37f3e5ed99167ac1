"""GPipe: all forwards, then all backwards. Simple, and it keeps every microbatch alive."""

from __future__ import annotations

from recpipe.schedule.families.base import Family, Request, act, linear, one_step
from recpipe.schedule.ir import Op, Program


def build(request: Request) -> Program:
    """Any number of microbatches."""
    numbers = range(request.microbatches)
    orders = [
        [act(op, rank, m) for op in (Op.F, Op.B) for m in numbers] for rank in range(request.ranks)
    ]
    return one_step("gpipe", linear(request.ranks), request.microbatches, orders)


FAMILY = Family("gpipe", "all forwards, then all backwards", build)
