"""A program in its steady state: how long one step takes when many follow each other, and how much of it ranks idle.

The same numbers are read off a simulation and off a recorded run, so that they can be held against each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from recpipe.schedule.cost import Cost
from recpipe.schedule.deps import Relation, is_communication
from recpipe.schedule.ir import COMPUTE_OPS, Op, Program
from recpipe.schedule.passes.lanes import expand
from recpipe.schedule.simulate import simulate
from recpipe.schedule.timeline import Event, Timeline

_FIRST, _LAST = 1, 3
"""Steps of a simulated program that are in the steady state: they have neighbours on both sides."""


@dataclass(frozen=True)
class Steady:
    """One step among many.

    Args:
        step: from the end of a step to the end of the next.
        busy: compute of a rank in a step, mean over ranks.
    """

    step: float
    busy: float

    @property
    def bubble(self) -> float:
        """Share of a step that a rank's compute lane idles, mean over ranks."""
        return 1 - self.busy / self.step if self.step else 0.0


def steady(timeline: Timeline) -> Steady:
    """Of the steps that a timeline holds; needs at least two that ended."""
    ends: dict[int, float] = defaultdict(float)
    for event in timeline.events:
        if event.action.op in (Op.EU, Op.OPT):
            ends[event.action.step] = max(ends[event.action.step], event.end)
    moments = [ends[step] for step in sorted(ends)]
    start, stop = moments[0], moments[-1]
    steps = len(moments) - 1
    busy = sum(_inside(event, start, stop) for event in timeline.events if event.lane == "compute")
    return Steady(
        median(b - a for a, b in zip(moments, moments[1:], strict=False)) if steps else timeline.makespan,
        busy / timeline.num_ranks / max(steps, 1),
    )


def _inside(event: Event, start: float, stop: float) -> float:
    return max(0.0, min(event.end, stop) - max(event.start, start))


def predict(program: Program, cost: Cost, unit: str = "ms") -> Timeline:
    """The steady steps of a program of five, every lane written out, times from 0."""
    whole = simulate(expand(program), cost, unit)
    return from_zero(Timeline(tuple(e for e in whole.events if _FIRST <= e.action.step <= _LAST), whole.num_ranks, unit))


def from_zero(timeline: Timeline) -> Timeline:
    """The same with times from 0, where the tower begins; what was done ahead of it, under earlier steps, is left out."""
    start = min((event.start for event in timeline.events if event.action.op in COMPUTE_OPS), default=0.0)
    shown = (event for event in timeline.events if event.end > start or event.action.op in COMPUTE_OPS)
    moved = (event._replace(start=max(0.0, event.start - start), end=max(0.0, event.end - start)) for event in shown)
    return Timeline(tuple(moved), timeline.num_ranks, timeline.unit)


def joined(events: Sequence[Event], program: Program) -> list[Event]:
    """As a simulation has it: a message or collective begins when its last member has issued it, not before."""
    relation = Relation(expand(program))
    began: dict[object, float] = {}
    for event in events:
        if is_communication(event.action.op):
            key = relation.join(event.action)
            began[key] = max(began.get(key, event.start), event.start)
    return [
        event._replace(start=min(event.end, began[relation.join(event.action)])) if is_communication(event.action.op) else event
        for event in events
    ]


def measured_durations(events: Iterable[Event]) -> dict[str, float]:
    """Medians by op, stage and microbatch (of row exchanges: over all ranks): what `Cost.measured` takes."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        action = event.action
        key = f"{action.op}.{action.microbatch}" if action.op in (Op.EO, Op.EG) else str(action._replace(replica=0, step=0))
        found[key].append(event.end - event.start)
    return {key: median(values) for key, values in found.items()}
