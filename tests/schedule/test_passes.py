"""The exchange passes: what is placed where, what that hides, and what filling bubbles gains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recpipe.schedule.assemble import assemble
from recpipe.schedule.check import check
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.passes.fill import fill_bubbles
from recpipe.schedule.simulate import simulate
from tests.schedule.cases import SYNCHRONOUS, measured, program

NETWORK = Cost(lookup=0.5, update=0.5, row_bytes=6, far=Link(0.0, 1.0), early=0.75)


def place(made: Program, rank: int, op: Op, step: int, microbatch: int = -1) -> int:
    """Position of one action of `op` in the order of `rank`."""
    return next(
        k
        for k, a in enumerate(made.orders[rank])
        if a.op is op and a.step == step and (microbatch < 0 or a.microbatch == microbatch)
    )


def count(made: Program, rank: int, op: Op, step: int) -> int:
    return sum(a.op is op and a.step == step for a in made.orders[rank])


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_step_looks_up_once_and_updates_once(name: str) -> None:
    made = program(name, "step", steps=2)
    for rank in range(2):
        for step in range(2):
            counts = {op: count(made, rank, op, step) for op in (Op.ED, Op.EL, Op.EU, Op.PL, Op.PO)}
            assert counts == {Op.ED: 1, Op.EL: 1, Op.EU: 1, Op.PL: 0, Op.PO: 0}
            assert count(made, rank, Op.EO, step) == count(made, rank, Op.EG, step) == made.microbatches


def test_rows_travel_as_first_needed_and_gradients_as_last_used() -> None:
    made = program("1f1b", "step", ranks=2, microbatches=4)
    order = [a for a in made.orders[0] if a.op in (Op.EO, Op.EG)]
    assert [a.microbatch for a in order if a.op is Op.EO] == [0, 1, 2, 3]
    for m in range(4):
        backward = made.orders[0].index(Action(Op.B, 0, m))
        between = made.orders[0][backward + 1 : place(made, 0, Op.EG, 0, m)]
        assert all(a.op in (Op.RG, Op.SG) for a in between)


@pytest.mark.parametrize("mode", ["ahead", "spread"])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_ahead_routes_two_steps_and_fetches_one(name: str, mode: str) -> None:
    made = program(name, mode, steps=4)
    for rank in range(2):
        for step in range(1, 4):
            end_of_last = place(made, rank, Op.EU, step - 1)
            assert place(made, rank, Op.PL, step) < end_of_last < place(made, rank, Op.EL, step)
            assert place(made, rank, Op.PO, step) < end_of_last < place(made, rank, Op.EO, step)
        for step in range(2, 4):
            assert place(made, rank, Op.ED, step) < place(made, rank, Op.EU, step - 2)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_spread_updates_the_rest_under_the_next_step(name: str) -> None:
    """Its gradients travel behind its own update, which waits for fewer, and are applied before any lookup that needs them."""
    made = program(name, "spread", steps=4)
    for rank in range(2):
        assert count(made, rank, Op.DG, 3) == count(made, rank, Op.DU, 3) == 0
        for step in range(3):
            counts = {op: count(made, rank, op, step) for op in (Op.EU, Op.DG, Op.DU)}
            assert counts == {Op.EU: 1, Op.DG: 1, Op.DU: 1}
            assert place(made, rank, Op.EU, step) < place(made, rank, Op.DG, step) < place(made, rank, Op.DU, step)
            assert place(made, rank, Op.DU, step) < place(made, rank, Op.EU, step + 1)
        for step in range(2):
            assert place(made, rank, Op.DU, step) < place(made, rank, Op.PL, step + 2)


def test_spread_hides_gradients_that_ahead_exposes() -> None:
    """Four steps on a slow network: every gradient travels once, and the last backward of a step is followed by few."""
    request = Request(1, 2)
    ahead, spread = (assemble("1f1b", request, Exchange(mode), steps=4, lanes=2) for mode in ("ahead", "spread"))
    slow, quick = measured(ahead, NETWORK), measured(spread, NETWORK)
    assert quick.makespan < slow.makespan
    assert quick.exchange["EG"].exposed < slow.exchange["EG"].exposed / 1.5
    moved = [sum(size for op, size in m.collective_bytes.items() if op in ("EG", "DG")) for m in (slow, quick)]
    assert moved[0] == pytest.approx(moved[1]) == pytest.approx(24)
    assert quick.collective_bytes["DG"] == pytest.approx(3 * 6 * 0.75)


def test_ahead_hides_what_step_exposes() -> None:
    """Three steps on a slow network: less waits at the start of a step, and the makespan falls by as much.

    Early rows travel in the bubble before the first backward, where a count of idle time still calls them exposed.
    """
    request = Request(4, 8)
    step, ahead = (assemble("1f1b", request, Exchange(mode), steps=3) for mode in ("step", "ahead"))
    slow, quick = measured(step, NETWORK), measured(ahead, NETWORK)
    assert quick.makespan < slow.makespan
    assert quick.exchange["EO"].exposed < slow.exchange["EO"].exposed / 2
    moved = [sum(size for op, size in m.collective_bytes.items() if op in ("EO", "PO")) for m in (slow, quick)]
    assert moved[0] == pytest.approx(moved[1]) == pytest.approx(18)


def test_rows_do_not_grow_with_microbatches() -> None:
    """The window exchange: volume depends on the step."""
    for microbatches in (1, 4, 16):
        made = assemble("1f1b", Request(4, microbatches), Exchange("step"))
        sizes = measured(made, NETWORK).collective_bytes
        assert sizes["EO"] == pytest.approx(6) and sizes["EG"] == pytest.approx(6)


@pytest.mark.parametrize("mode", ["ahead", "spread"])
def test_fill_uses_bubbles(mode: str) -> None:
    """Table work that held up the pipeline moves under it, and the program stays exact."""
    request = Request(4, 8)
    cost = replace(NETWORK, lookup=2.0, update=1.0, far=Link(0.0, 50.0))
    plain = assemble("1f1b", request, Exchange(mode), steps=3)
    filled = fill_bubbles(plain, cost)
    assert check(filled).exact
    assert [sorted(order) for order in filled.orders] == [sorted(order) for order in plain.orders]
    assert simulate(filled, cost).makespan < simulate(plain, cost).makespan


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("host", ["async", "sync"])
@pytest.mark.parametrize("mode", ["ahead", "spread"])
def test_fill_is_never_slower(name: str, mode: str, host: str) -> None:
    for lookup, update in ((0.3, 0.3), (2.0, 0.5), (0.5, 3.0)):
        cost = replace(NETWORK, lookup=lookup, update=update, host=host)
        plain = program(name, mode, steps=3)
        filled = fill_bubbles(plain, cost)
        assert check(filled).exact
        assert simulate(filled, cost).makespan <= simulate(plain, cost).makespan
