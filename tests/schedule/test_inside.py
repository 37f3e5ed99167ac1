"""Compute beside the rows: what waits for less than a whole forward or backward, by hand and as properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.errors import ConfigError
from recpipe.schedule.assemble import assemble
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.inside import followers
from recpipe.schedule.ir import Program
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import critical_path, simulate
from tests.schedule.test_properties import programs

COST = Cost(10, 8, 12, row_bytes=4.0, early=0.5, lookup=2.0, weight_bytes=0.0, far=Link(0.0, 1.0), host="sync")


def program(mode: str = "ahead", microbatches: int = 1, stages: int = 1, steps: int = 3) -> Program:
    return assemble("1f1b", Request(stages, microbatches), Exchange(mode), steps, 2)


def spans(made: Program, cost: Cost) -> dict[str, tuple[float, float]]:
    return {str(e.action): (e.start, e.end) for e in simulate(made, cost).events if e.rank == 0}


def times(mode: str, share: float, step: int, **settings: float) -> dict[str, tuple[float, float]]:
    """Spans of one step, counted from the start of its lookup."""
    found = spans(program(mode), replace(COST, beside_rows=share, **settings))
    start = found[f"{step}:EL0"][0]
    return {name: (begin - start, end - start) for name, (begin, end) in found.items()}


def test_a_backward_and_a_forward_by_hand() -> None:
    """Two ranks, F 10, B 20, rows 4 of which half are early, a look-up of 2 of which half is early, half of F beside rows."""
    whole, half = times("ahead", 0.0, 1), times("ahead", 0.5, 1)
    assert whole["1:EL0"] == half["1:EL0"] == (0, 1)
    assert whole["1:EO0.0"] == half["1:EO0.0"] == (1, 3)
    assert whole["1:F0.0"] == (3, 13) and half["1:F0.0"] == (1, 11), "the bottom half runs while rows are on their way"
    assert whole["2:PL0"] == (13, 14) and half["2:PL0"] == (11, 12), "compute stays where it is"
    assert whole["2:PO0"] == (14, 16) and half["2:PO0"] == (7, 9), "5 before the end of the forward, and 1 of look-up"
    assert whole["1:B0.0"] == (14, 34) and half["1:B0.0"] == (12, 32)
    assert whole["1:EG0.0"] == (34, 38) and half["1:EG0.0"] == (22, 26), "10 before the end of the backward"
    assert whole["2:EL0"][0] == 38 and half["2:EL0"][0] == 32, "gradients have travelled before the backward ends"


def test_rows_that_take_longer_than_what_runs_beside_them() -> None:
    found = times("ahead", 0.1, 1, row_bytes=40.0)
    assert found["1:EO0.0"] == (1, 21) and found["1:F0.0"] == (20, 30), "9 of 10 wait for the rows"
    assert found["2:PO0"][0] == 22, "when the rows are there, and the look-up is done"


def test_deferred_gradients_leave_when_a_forward_has_its_rows() -> None:
    whole, part = times("spread", 0.0, 1), times("spread", 0.3, 1)
    assert whole["1:F0.0"] == (3, 13) and whole["DG0"] == (13, 15)
    assert part["1:F0.0"] == (1, 11) and part["DG0"] == (4, 6)


def test_only_where_the_host_waits_and_only_what_is_right_behind() -> None:
    made = program()
    assert simulate(made, replace(COST, beside_rows=0.5, host="async")) == simulate(made, replace(COST, host="async"))
    found = {str(a): [str(b) for b in behind] for a, behind in followers(program("spread").orders[0])}
    assert found["1:F0.0"] == ["DG0"] and found["1:B0.0"] == ["1:EG0.0"]
    ahead = {str(a): [str(b) for b in behind] for a, behind in followers(made.orders[0])}
    assert ahead["1:F0.0"] == ["2:PL0", "2:PO0"]
    two = {str(a): behind for a, behind in followers(program("ahead", 2, 2).orders[0])}
    assert not two["F0.0"], "a message to the next stage comes first"
    with pytest.raises(ConfigError, match=r"cost.beside_rows=1.5: a share lies in"):
        Cost(beside_rows=1.5)


@pytest.mark.parametrize("shared", [False, True])
@settings(max_examples=100, deadline=None)
@given(programs(), st.floats(0.01, 1.0))
def test_beside_rows_is_never_slower(shared: bool, case: tuple[Program, Cost], share: float) -> None:
    """Than waiting for all rows and for the end; on shared links one message may hold up another that matters more."""
    made, cost = case
    cost = replace(cost, host="sync", shared=shared)
    before, after = simulate(made, cost).makespan, simulate(made, replace(cost, beside_rows=share)).makespan
    assert after <= before * (1.1 if shared else 1) + 1e-9
    if not shared:
        assert after >= critical_path(made, replace(cost, beside_rows=share)) - 1e-9 * (1 + after)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(program, st.sampled_from(["step", "route"]), st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.floats(0, 40),
)
def test_a_larger_share_is_never_slower(made: Program, shares: tuple[float, float], size: float) -> None:
    """Where nothing leaves when a forward has its rows: for that a large share may be long."""
    less, more = (simulate(made, replace(COST, row_bytes=size, beside_rows=s)).makespan for s in sorted(shares))
    assert more <= less + 1e-9
