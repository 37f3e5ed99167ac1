"""The order that a rank repeats: cut out of a checked program, the same for any number of steps."""

from __future__ import annotations

import pytest

from recpipe.errors import ScheduleError
from recpipe.runtime.order import STEPS, StepOrder, step_order
from recpipe.runtime.program import build_program
from recpipe.schedule.families import FAMILIES
from recpipe.schedule.ir import Op
from recpipe.schedule.settings import CostSettings, ScheduleSettings


def program(name="1f1b", stages=2, lanes=2, **settings):
    chosen = ScheduleSettings(name=name, **{"microbatches": None, "embedding": "ahead", **settings})
    return build_program(chosen, CostSettings(), stages, lanes)


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("mode", ["step", "route", "ahead", "spread"])
def test_repeating_the_cut_gives_the_program_again(name, mode):
    made = program(name, embedding=mode)
    for rank, order in enumerate(made.orders):
        cut = step_order(made, rank)
        again = [action for step in range(STEPS) for action in cut.actions(step) if action.step < STEPS]
        # Towards its end a program has less to do for later steps, so that a receive may stand a place earlier.
        assert sorted(again) == sorted(order)
        steady = [action for action in again if action.step < STEPS - 2]
        assert steady == [action for action in order if action.step < STEPS - 2]


def test_scoring_has_no_training_in_it():
    made = program("zb_h1")
    found = {action.op for action in step_order(made, 1).forward_only().later}
    assert found == {Op.ED, Op.EL, Op.EO, Op.F, Op.RA}


def test_what_cannot_be_repeated_is_refused():
    with pytest.raises(ScheduleError, match=r"schedule\.fill=true"):
        program(fill=True)
    made = program()
    late = [list(order) for order in made.orders]
    last = late[0].index(next(a for a in late[0] if a.op is Op.EG and a.step == 2 and a.microbatch == 1))
    late[0][last], late[0][last + 1] = late[0][last + 1], late[0][last]
    with pytest.raises(ScheduleError, match="issues another order in each step"):
        step_order(made.with_orders(late), 0)


def test_microbatches_in_the_order_of_an_exchange():
    order = step_order(program("1f1b", microbatches=3), 0)
    assert order.microbatches(Op.EO) == (0, 1, 2)
    assert StepOrder(order.program, (), ()).microbatches(Op.EG) == (0, 1, 2)
