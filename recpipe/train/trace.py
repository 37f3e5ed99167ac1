"""`trace.steps`: records some steps of a run and writes what happened beside what was predicted."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recpipe.comm.clock import clock_offset
from recpipe.runtime.ledger import make_ledger, table, totals
from recpipe.runtime.recorder import Recorder
from recpipe.runtime.steady import Steady, from_zero, joined, measured_durations, predict, steady
from recpipe.schedule.cost import Cost
from recpipe.schedule.draw.pair import svg_pair
from recpipe.schedule.settings import CostSettings, cost_of
from recpipe.schedule.timeline import Event, Timeline, chrome_trace
from recpipe.train.config import check_trace
from recpipe.train.config_text import as_record
from recpipe.train.setup import Job

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Traced:
    """What a trace found.

    Args:
        measured, predicted: the steady step.
        exchange: by op, milliseconds a step over all ranks.
        text: for people.
    """

    measured: Steady
    predicted: Steady
    exchange: dict[str, dict[str, float]]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        rows = {name: {**asdict(one), "bubble": one.bubble} for name, one in
                (("measured", self.measured), ("predicted", self.predicted))}  # fmt: skip
        return {"unit": "ms", **rows, "exchange": self.exchange}


def start_trace(job: Job, total_steps: int) -> Recorder | None:
    """Sets a recorder where the configuration asks for one; collective.

    Raises:
        ConfigError: the range of steps is not one, or lies outside the run.
    """
    steps = list(job.cfg.trace.steps)
    if not steps:
        return None
    check_trace(steps, total_steps)
    offset = clock_offset(job.groups.rank, job.groups.world, job.groups.control)
    recorder = Recorder(job.traffic, job.place, steps[0], steps[1], offset)
    job.trainer.executor.recorder = recorder
    return recorder


def write_trace(recorder: Recorder, job: Job, folder: Path) -> dict[str, Any] | None:
    """Gathers what all ranks recorded; rank 0 writes it, says it, and gets its part of summary.json. Collective."""
    everyone = job.groups.gather_objects((recorder.events(), recorder.waits()))
    events, waits = ([one for part in column for one in part] for column in zip(*everyone, strict=True))
    if job.groups.rank:
        return None
    num_steps = recorder.stop - recorder.first
    if not events:
        logger.warning("WARNING: the run ended before step %d, so there is nothing to trace", recorder.first)
        return None
    inside = joined([e for e in events if 0 <= e.action.step < num_steps], job.program)
    measured = from_zero(Timeline(tuple(inside), job.groups.world, "ms"))
    predicted = predict(job.program, _cost(job, inside))
    ledger = make_ledger(inside, [w for w in waits if 0 <= w.source.step < num_steps])
    found = Traced(steady(measured), steady(predicted), totals(ledger, num_steps), table(ledger, num_steps))
    target = folder / "trace"
    target.mkdir(exist_ok=True)
    (target / "trace.json").write_text(json.dumps(chrome_trace(measured, 1000.0)))
    (target / "ledger.json").write_text(json.dumps([asdict(entry) | {"hidden": entry.hidden} for entry in ledger], indent=1))
    (target / "ledger.txt").write_text(found.text + "\n")
    titles = _title("measured", found.measured), _title("predicted", found.predicted)
    (target / "gantt.svg").write_text(svg_pair(measured, titles[0], predicted, titles[1]))
    logger.info("trace of steps %d to %d: %s; %s", recorder.first, recorder.stop - 1, *titles)
    logger.info("%s\nwrote trace.json (for ui.perfetto.dev), gantt.svg and the ledger to %s", found.text, target)
    return found.as_dict()


def _cost(job: Job, events: list[Event]) -> Cost:
    """What the prediction goes by: the configured costs, or durations of this very trace where those are no milliseconds."""
    settings = as_record(CostSettings, job.cfg.cost)
    if settings.unit == "ms":
        return cost_of(settings, job.program)
    return replace(Cost(), measured=measured_durations(events), host="sync")


def _title(name: str, one: Steady) -> str:
    return f"{name}: {one.step:.1f} ms a step, bubble {one.bubble:.1%}"
