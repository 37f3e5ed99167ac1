"""Properties over random costs, sizes and families."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recpipe.errors import ScheduleError
from recpipe.schedule.assemble import assemble, microbatch_ratio
from recpipe.schedule.check import check
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Op, Program
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import busiest_rank, critical_path, simulate
from recpipe.schedule.text import format_program, parse_program
from tests.schedule.cases import ALL

times = st.floats(0.1, 4.0)
small = st.floats(0.0, 3.0)
links = st.builds(Link, small, st.floats(0.5, 100.0))
costs = st.builds(
    Cost,
    forward=times,
    input=times,
    weight=times,
    overhead=st.floats(0.0, 0.5),
    profile=st.lists(times, max_size=5).map(tuple),
    optimizer=small,
    activation_bytes=small,
    weight_bytes=small,
    near=links,
    far=links,
    ranks_per_node=st.integers(0, 3),
    delay=st.lists(small, max_size=3).map(tuple),
    route=small,
    lookup=small,
    update=small,
    row_bytes=small,
    first_use=st.lists(times, max_size=4).map(tuple),
    early=st.floats(0.0, 1.0),
    fused=st.floats(0.5, 1.5),
    host=st.sampled_from(["async", "sync"]),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, Cost]:
    """A program of any family that accepts the draw, and costs in its own microbatches."""
    request = Request(
        ranks=draw(st.integers(1, 4)),
        microbatches=draw(st.integers(1, 8)),
        chunks=draw(st.integers(1, 3)),
        pipelines=draw(st.sampled_from([2, 4])),
        beyond=draw(st.sampled_from(["concatenate", "double", "halve"])),
        cost=draw(costs),
    )
    name = draw(st.sampled_from(ALL))
    if name == "cyclic":
        request = replace(request, microbatches=request.ranks)
    exchange = Exchange(draw(st.sampled_from(["none", "step", "ahead", "spread"])), draw(st.integers(0, 3)))
    steps, lanes, fill = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())
    try:
        made = assemble(name, request, exchange, steps, lanes, fill)
    except ScheduleError as error:
        assert " would do." in str(error) or "is not one of" in str(error)
        assume(False)
    return made, request.cost.scaled(microbatch_ratio(made, request))


quick = settings(max_examples=200, deadline=None)


@quick
@given(programs())
def test_no_builder_fails_the_checker(case: tuple[Program, Cost]) -> None:
    made, _ = case
    assert check(made).exact or made.lag


@quick
@given(programs())
def test_makespan_is_not_below_its_bounds(case: tuple[Program, Cost]) -> None:
    made, cost = case
    makespan = simulate(made, cost).makespan
    slack = 1e-9 * (1 + makespan)
    assert makespan >= critical_path(made, cost) - slack
    if not made.fused or cost.fused >= 1:
        assert makespan >= busiest_rank(made, cost) - slack


@quick
@given(programs())
def test_text_round_trips(case: tuple[Program, Cost]) -> None:
    made, _ = case
    assert parse_program(format_program(made)) == made


@quick
@given(programs(), st.integers(0, 3), st.floats(0.0, 5.0))
def test_more_delay_is_never_faster(case: tuple[Program, Cost], link: int, more: float) -> None:
    made, cost = case
    delay = [*cost.delay, *[0.0] * 4][:4]
    delay[link] += more
    before, after = simulate(made, cost).makespan, simulate(made, replace(cost, delay=tuple(delay))).makespan
    assert after >= before - 1e-9 * (1 + before)


@quick
@given(programs())
def test_nothing_runs_before_what_it_needs(case: tuple[Program, Cost]) -> None:
    """The timeline itself: lanes never overlap, and backward never precedes forward."""
    made, cost = case
    timeline = simulate(made, cost)
    for rank in range(timeline.num_ranks):
        row = timeline.compute(rank)
        for first, second in zip(row, row[1:], strict=False):
            assert second.start >= first.end - 1e-9 * (1 + first.end)
        ended = {event.action: event.end for event in row}
        for event in row:
            if event.action.op in (Op.B, Op.I):
                assert event.start >= ended[event.action._replace(op=Op.F)] - 1e-9 * (1 + event.start)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 7, 13])
def test_any_count_or_a_count_that_would_do(name: str, microbatches: int) -> None:
    """A family takes M, or names one that it takes."""
    try:
        assemble(name, Request(4, microbatches))
    except ScheduleError as error:
        offered = str(error).split("schedule.microbatches=")[1].split()[0]
        assemble(name, Request(4, int(offered)))
