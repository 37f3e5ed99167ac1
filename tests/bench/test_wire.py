"""Messages that are recorded and played back: no network then, the same result, and the same sizes when sent again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist

from recpipe.bench.exchange import ExchangeProbe
from recpipe.bench.recpipe_side import RecpipeSide
from recpipe.bench.settings import Workload, parse_contestant
from recpipe.bench.wire import replay
from tests.ranks import run_ranks

WORK = Workload("dlrm", "skewed", "", ranks=2, batch_size=16, rows=100, dim=8, num_batches=4)


def probe(name: str) -> tuple[RecpipeSide, ExchangeProbe]:
    side = RecpipeSide(parse_contestant(name, 2), WORK)
    for _ in range(WORK.num_batches):
        side.step()
    found = ExchangeProbe(side)
    found.record()
    return side, found


def play_apart(rank: int, world: int, name: str) -> float:
    """Each rank plays while the other stands still: it would hang if anything of it went over the network."""
    side, found = probe(name)
    seconds = 0.0
    for turn in range(world):
        if turn == rank:
            seconds = found.alone(1)["seconds"]
        dist.barrier()
    # What was ahead of the steps that were played is there for those that are not.
    for _ in range(WORK.num_batches):
        side.step()
    return seconds


@pytest.mark.parametrize("name", ["window:2x1:m2:ahead", "window:1x2:m3:ahead"])
def test_steps_that_are_played_need_no_other_rank(name):
    assert all(seconds > 0 for seconds in run_ranks(play_apart, 2, name))


def play_others(rank: int, world: int) -> str:
    side, found = probe("window:2x1:m2:ahead")
    side.step()
    try:
        found.alone(0)
    except AssertionError as error:
        return str(error)
    return ""


def test_steps_that_were_not_recorded_are_not_played():
    assert all("not the steps that were recorded" in said for said in run_ranks(play_others, 2))


def send_again(rank: int, world: int) -> tuple[int, dict[str, float]]:
    _, found = probe("window:1x2:m2:ahead")
    calls = found._tape.calls
    replay(calls)
    return len(calls), found.network()


def test_messages_are_sent_again():
    for number, seconds in run_ranks(send_again, 2):
        assert number == WORK.num_batches * 12
        assert seconds["exchange"] > 0 and seconds["all"] > 0


def stand_still(rank: int, world: int) -> tuple[int, dict[str, Any]]:
    """Rank 1 is late at every step, so rank 0 has to wait for its rows."""
    side, found = probe("window:2x1:m1:step")
    lookup = side.job.tables.open

    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.05 if rank else 0.0)
        return lookup(*arguments, **options)

    side.job.tables.open = late
    return rank, found.exposed()


def test_waiting_for_a_rank_that_is_late_is_told_from_waiting_for_the_network():
    (_, first), (_, second) = run_ranks(stand_still, 2)
    assert first["late"] > 0.5 * 0.05 > first["exchange"] > 0
    assert second["late"] < first["late"]
