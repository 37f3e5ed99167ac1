"""Recorded steps: every action is there, nothing overlaps on the compute lane, and the ledger adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recpipe.comm import Groups
from recpipe.errors import ConfigError
from recpipe.runtime.ledger import make_ledger, totals
from recpipe.runtime.recorder import Wait
from recpipe.runtime.steady import steady
from recpipe.schedule.ir import Action, Op
from recpipe.schedule.timeline import Event, Timeline
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.reading import read_batches
from recpipe.train.setup import build_job
from recpipe.train.trace import start_trace, write_trace
from tests.ranks import run_ranks
from tests.train.jobs import small_config


def traced(rank, world, cfg, folder):
    job = build_job(cfg, Groups.create())
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas, parts=job.place.placement.num_replicas)
    recorder = start_trace(job, feed.num_steps)
    for _ in job.trainer.run(read_batches(job, feed, 0)):
        pass
    events = recorder.events()
    return write_trace(recorder, job, folder), [(str(e.action), e.lane, e.start, e.end) for e in events]


@pytest.mark.parametrize(("stages", "family"), [(1, "1f1b"), (2, "zb_h1"), (2, "chimera")])
def test_a_trace_of_three_steps(stages, family, tmp_path: Path):
    cfg = small_config(2, TrainConfig, mesh__stages=stages, schedule__name=family, trace__steps=[1, 4])
    (summary, mine), (other, _) = run_ranks(traced, 2, cfg, tmp_path)
    assert other is None and summary["measured"]["step"] > 0 and 0 <= summary["predicted"]["bubble"] < 1
    compute = sorted((start, end) for _, lane, start, end in mine if lane == "compute")
    assert all(later >= end - 1e-6 for (_, end), (later, _) in zip(compute, compute[1:], strict=False))
    forwards = {name for name, *_ in mine if "F0." in name}
    assert len(forwards) == 3 * len({name.split("F")[1] for name in forwards})
    written = json.loads((tmp_path / "trace" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in written} == {0, 1}
    ledger = json.loads((tmp_path / "trace" / "ledger.json").read_text())
    assert {entry["step"] for entry in ledger} == {0, 1, 2}
    for op, row in summary["exchange"].items():
        assert row["exposed"] == pytest.approx(sum(e["exposed"] for e in ledger if e["op"] == op) / 3)
    assert "measured" in (tmp_path / "trace" / "gantt.svg").read_text()


@pytest.mark.parametrize("steps", [[3], [3, 4], [5, 3], [3, 99], [-1, 3]])
def test_steps_that_are_no_range_are_refused(steps):
    cfg = small_config(1, TrainConfig, trace__steps=steps)
    with pytest.raises(Exception, match=r"trace\.steps") as caught:
        run_ranks(start_only, 1, cfg)
    assert ConfigError.__name__ in str(caught.value)


def start_only(rank, world, cfg):
    start_trace(build_job(cfg, Groups.create()), 10)


def test_the_ledger_says_who_waited_for_what():
    send, receive = Action(Op.SA, 0, 1), Action(Op.RA, 1, 1)
    events = [Event(0, "send", send, 0.0, 5.0), Event(1, "receive", receive, 1.0, 5.0)]
    waits = [Wait(1, Action(Op.F, 1, 1), receive, 3.0)]
    (entry,) = make_ledger(events, waits)
    assert (entry.op, entry.rank, entry.under_way, entry.exposed, entry.hidden) == ("SA", 1, 4.0, 3.0, 1.0)
    assert entry.waiting == {"F1": 3.0}
    assert totals([entry], 2) == {"SA": {"under_way": 2.0, "hidden": 0.5, "exposed": 1.5}}


def test_a_steady_step_is_from_end_to_end():
    rows = [(0, 4.0, 10.0), (1, 11.0, 20.0), (2, 21.0, 30.0)]
    events = tuple(Event(0, "compute", Action(Op.EU, 0, -1, 0, step), start, end) for step, start, end in rows)
    found = steady(Timeline(events, 1, "ms"))
    assert (found.step, found.busy) == (10.0, 9.0)
    assert found.bubble == pytest.approx(0.1)
