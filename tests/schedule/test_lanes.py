"""Identical lanes are simulated as one: the fold gives what every lane written out gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recpipe.schedule.check import check
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.ir import Program
from recpipe.schedule.metrics import measure
from recpipe.schedule.passes.lanes import expand
from recpipe.schedule.simulate import simulate
from recpipe.schedule.timeline import Event
from tests.schedule.cases import ALL, program

COST = Cost(
    profile=(1, 2, 1.5),
    optimizer=0.3,
    weight_bytes=3,
    far=Link(0.1, 2),
    delay=(0.2,),
    route=0.1,
    lookup=0.4,
    update=0.3,
    row_bytes=2,
    first_use=(3, 2, 1),
)


def lane_events(events: tuple[Event, ...], made: Program, lane: int) -> list[Event]:
    """Events of one lane, renumbered as if it were the first."""
    width, replicas = made.placement.num_ranks, made.placement.num_replicas
    found = []
    for event in events:
        if event.rank // width == lane:
            action = event.action._replace(replica=event.action.replica - lane * replicas)
            found.append(event._replace(rank=event.rank - lane * width, action=action))
    return found


@pytest.mark.parametrize("host", ["async", "sync"])
@pytest.mark.parametrize("mode", ["none", "step", "ahead", "spread"])
@pytest.mark.parametrize("name", ALL)
def test_fold_equals_all_lanes(name: str, mode: str, host: str) -> None:
    """Every event of every lane, not only the makespan, and every metric."""
    folded = program(name, mode, steps=2, lanes=3, ranks=2, microbatches=4)
    cost = replace(COST, host=host)
    whole = expand(folded)
    assert check(whole) == check(folded)
    assert whole.num_ranks == folded.num_ranks and whole.num_actions == folded.num_actions
    one, every = simulate(folded, cost), simulate(whole, cost)
    for lane in range(3):
        found = lane_events(every.events, folded, lane)
        assert [e[:3] for e in found] == [e[:3] for e in one.events]
        assert [t for e in found for t in e[3:]] == pytest.approx([t for e in one.events for t in e[3:]])
    small, large = measure(folded, one, cost), measure(whole, every, cost)
    assert large.makespan == pytest.approx(small.makespan)
    assert large.bubble_ratio == pytest.approx(small.bubble_ratio)
    assert [r.peak_activations for r in large.ranks] == [r.peak_activations for r in small.ranks] * 3


def test_unequal_lanes_are_written_out() -> None:
    """Three ranks a lane on nodes of four: lane 1 straddles a node, so lane 0 cannot stand for it."""
    made = program("1f1b", ranks=3, microbatches=4, lanes=4)
    cost = Cost(near=Link(0.0), far=Link(1.0), ranks_per_node=4)
    assert not cost.lanes_are_equal(made)
    assert simulate(made, cost).num_ranks == 12
    assert simulate(made, replace(cost, ranks_per_node=3)).num_ranks == 3


@pytest.mark.parametrize("name", ALL)
def test_order_of_a_rank(name: str) -> None:
    """What an executor asks for equals the written-out program."""
    made = program(name, "step", lanes=3)
    whole = expand(made)
    assert [made.order_of(rank) for rank in range(made.num_ranks)] == list(whole.orders)
    with pytest.raises(IndexError, match="outside"):
        made.order_of(made.num_ranks)
