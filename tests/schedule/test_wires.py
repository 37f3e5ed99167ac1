"""A shared link: what a rank sends goes one after the other; nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recpipe.schedule.assemble import assemble
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Op
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import simulate

NET = Cost(row_bytes=8.0, weight_bytes=6.0, activation_bytes=1.0, far=Link(0.5, 2.0), host="sync")


def program(stages=1, microbatches=2, lanes=2, mode="route"):
    return assemble("1f1b", Request(stages, microbatches), Exchange(mode), 3, lanes)


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_without_bytes_sharing_changes_nothing(stages, lanes):
    made = program(stages, 4, lanes)
    free = Cost(row_bytes=0.0, weight_bytes=0.0, activation_bytes=0.0, far=Link(0.25), route=0.1)
    assert simulate(made, replace(free, shared=True)).makespan == pytest.approx(simulate(made, free).makespan)


def test_a_reduction_waits_behind_row_gradients_on_the_same_link():
    """Two ranks, one stage each: gradients of a microbatch put 8 / 2 / 2 bytes on each link, the reduction 6."""
    timeline = simulate(program(), replace(NET, shared=True))
    found = {(e.rank, e.action.op, e.action.microbatch, e.action.step): e for e in timeline.events}
    last, reduction = found[0, Op.EG, 1, 1], found[0, Op.R, -1, 1]
    assert last.end - last.start == pytest.approx(4 / 2 / 2 + 0.5)
    assert reduction.start == pytest.approx(last.end - 0.5), "starts when the link is free, not when it was issued"
    assert reduction.end - reduction.start == pytest.approx(6 / 2 + 2 * 0.5)


def test_links_of_different_ranks_do_not_wait_for_each_other():
    """Two stages: rows leave rank 1, row gradients rank 0, and both boundaries have a link of their own."""
    made = program(2, 2, 1)
    wide = simulate(made, replace(NET, shared=True, activation_bytes=0.0))
    rows = [e for e in wide.events if e.action.op is Op.EO and e.action.step == 1 and e.rank == 0]
    assert [e.end - e.start for e in rows] == [pytest.approx(8 / 2 / 2 / 2 + 0.5)] * 2


def test_issuing_takes_host_time_only_where_the_host_waits():
    made = program()
    slow = replace(NET, issue={"EG": 0.3})
    assert simulate(made, slow).makespan > simulate(made, NET).makespan
    assert simulate(made, replace(slow, host="async")).makespan == simulate(made, replace(NET, host="async")).makespan
