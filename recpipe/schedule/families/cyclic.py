"""Cyclic data parallel: every rank holds the whole tower and starts two stage slots after its neighbour.

Activations over all ranks then stay constant. It is exact for one step. Over several, a forward sees weights that are
one update old (`Program.lag` 1): the gradient of a stage is summed when the last rank has it, in the next step.
"""

from __future__ import annotations

from dataclasses import replace

from recpipe.errors import ScheduleError
from recpipe.schedule.families.base import Family, Request, act, one_step
from recpipe.schedule.ir import Action, Op, Placement, Program


def build(request: Request) -> Program:
    """M must equal the number of ranks: one microbatch each."""
    n = request.ranks
    if request.microbatches != n:
        raise ScheduleError(
            f"cyclic runs one microbatch a rank, not {request.microbatches} on {n} ranks. "
            f"schedule.microbatches={n} or mesh.stages={request.microbatches} would do."
        )
    place = Placement(tuple((worker,) * n for worker in range(n)))
    program = one_step("cyclic", place, 1, [_order(worker, n) for worker in range(n)])
    return replace(program, stagger=2, lag=1)


def _order(worker: int, n: int) -> list[Action]:
    forwards = [act(Op.F, stage, 0, worker) for stage in range(n)]
    return forwards + [act(Op.B, stage, 0, worker) for stage in reversed(range(n))]


EXECUTED = (
    "schedule=cyclic is executed as plain data parallel for now: every rank holds the whole tower and trains one microbatch, "
    "all start together, and weights are up to date; the staggered starts and the lag are simulated only"
)
FAMILY = Family("cyclic", "data parallel with staggered starts, lag 1", build, EXECUTED)
