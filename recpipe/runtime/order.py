"""A rank's issue order for any number of steps, cut out of a checked program of a few.

A program with work ahead of time repeats itself: after the first step each step issues the same actions, some of them for
later steps. What lies beyond the last step is left out, on every rank alike: fewer actions wait for less, so an order
without deadlock stays one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from recpipe.errors import ScheduleError
from recpipe.schedule.check import check
from recpipe.schedule.inside import followers
from recpipe.schedule.ir import Action, Op, Program

STEPS = 5
"""Steps of the program that an order is cut from: the second and third look two steps ahead, as every later one does."""

Inside = Mapping[tuple[Op, int, int, int], tuple[Action, ...]]

_FORWARD_ONLY = frozenset({Op.ED, Op.EL, Op.EO, Op.F, Op.SA, Op.RA})


@dataclass(frozen=True)
class StepOrder:
    """What one rank issues.

    Args:
        program: what it was cut from.
        first: actions of step 0, those for later steps included.
        later: actions of any other step; their steps count from the current one.
    """

    program: Program
    first: tuple[Action, ...]
    later: tuple[Action, ...]

    def actions(self, step: int) -> Iterator[Action]:
        """The actions issued in step `step`, counted from 0 where the order begins."""
        if step == 0:
            yield from self.first
        else:
            for action in self.later:
                yield action._replace(step=action.step + step)

    def microbatches(self, op: Op) -> tuple[int, ...]:
        """Microbatches in the order in which `op` (EO or EG) serves them; all in turn where the order has none."""
        found = tuple(a.microbatch for a in self.later if a.op is op and a.step == 0)
        return found or tuple(range(self.program.microbatches))

    def inside(self, step: int) -> Inside:
        """Exchanges of a first stage that need not wait for the end of the compute action before them.

        Rows of the next step and deferred gradients may be sent as soon as a forward has its own rows, row gradients as soon
        as a backward has made them; blocks beside the tables (a bottom tower) are then still to come.

        Returns:
            By (op, replica, stage, microbatch) of a compute action: what follows it at once in `step`, steps counted from it.
        """
        return self._inside_first if step == 0 else self._inside_later

    @cached_property
    def _inside_first(self) -> Inside:
        return _followers(self.first)

    @cached_property
    def _inside_later(self) -> Inside:
        return _followers(self.later)

    def forward_only(self) -> StepOrder:
        """The same order without what training needs: for scoring."""
        keep = (tuple(a for a in part if a.op in _FORWARD_ONLY) for part in (self.first, self.later))
        return StepOrder(self.program, *keep)


def step_order(program: Program, local_rank: int) -> StepOrder:
    """Cuts the order of a rank (of its lane) out of a program of `STEPS` steps.

    Raises:
        ScheduleError: the program breaks a rule, is not exact over steps, or does not repeat itself.
    """
    assert program.steps == STEPS, f"{program.steps} steps"
    if not check(program).exact:
        raise ScheduleError(f"{program.name} over several steps works on old weights; training here is exact")
    orders = [_parts(order, program.steps) for order in program.orders]
    for rank, parts in enumerate(orders):
        if parts[1] != parts[2]:
            raise ScheduleError(f"{program.name}: rank {rank} issues another order in each step, which cannot go on")
    first, later = orders[local_rank][:2]
    return StepOrder(program, first, later)


def _followers(order: tuple[Action, ...]) -> Inside:
    return {
        (action.op, action.replica, action.stage, action.microbatch): tuple(
            other._replace(step=other.step - action.step) for other in behind
        )
        for action, behind in followers(order)
    }


def _parts(order: tuple[Action, ...], steps: int) -> list[tuple[Action, ...]]:
    """An order cut behind the last update of each step; steps counted from the current one."""
    closing = {a.step: k + 1 for k, a in enumerate(order) if a.op in (Op.EU, Op.OPT)}
    cuts = [0, *(closing[step] for step in range(steps))]
    return [
        tuple(action._replace(step=action.step - step) for action in order[cuts[step] : cuts[step + 1]])
        for step in range(steps)
    ]
