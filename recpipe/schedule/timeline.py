"""What happened when: the one record that a simulation predicts and a run measures.

Both sides use these types, so that prediction and measurement are drawn in one picture and subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from recpipe.schedule.ir import Action, Op

LANES = ("compute", "embedding", "send", "receive", "reduce")


class Event(NamedTuple):
    """One action on one rank from `start` to `end`, in lane `lane` (one of `LANES`)."""

    rank: int
    lane: str
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """All events of a program, in no order that matters.

    Args:
        events: what ran when.
        num_ranks: ranks shown; of one lane when identical lanes were folded.
        unit: name of the time unit, for labels.
    """

    events: tuple[Event, ...]
    num_ranks: int
    unit: str = "slot"

    @cached_property
    def makespan(self) -> float:
        """Last end minus first start."""
        if not self.events:
            return 0.0
        return max(event.end for event in self.events) - min(event.start for event in self.events)

    @cached_property
    def by_rank(self) -> tuple[tuple[Event, ...], ...]:
        """Events of each rank by start time."""
        rows: list[list[Event]] = [[] for _ in range(self.num_ranks)]
        for event in self.events:
            rows[event.rank].append(event)
        return tuple(tuple(sorted(row, key=lambda event: (event.start, event.end))) for row in rows)

    @cached_property
    def layer(self) -> dict[tuple[int, int, int], int]:
        """For each (rank, replica, stage) its place among those of the rank: chunks and directions, told apart."""
        found: list[set[tuple[int, int]]] = [set() for _ in range(self.num_ranks)]
        for event in self.events:
            found[event.rank].add((event.action.replica, event.action.stage))
        return {(rank, *slot): k for rank, slots in enumerate(found) for k, slot in enumerate(sorted(slots))}

    def layer_of(self, event: Event) -> int:
        """Place of the event's stage among the stages of its rank; 0 when the rank runs one."""
        return self.layer[event.rank, event.action.replica, event.action.stage]

    def compute(self, rank: int) -> list[Event]:
        """Compute events of one rank by start time."""
        return [event for event in self.by_rank[rank] if event.lane == "compute"]


_NAMES = {
    **dict.fromkeys(Op, "compute"),
    **dict.fromkeys((Op.ED, Op.PO, Op.EO, Op.EG, Op.DG), "embedding"),
    **dict.fromkeys((Op.SA, Op.SG), "send"),
    **dict.fromkeys((Op.RA, Op.RG), "receive"),
    Op.R: "reduce",
}


def lane_name(action: Action) -> str:
    """Lane of `action` as a timeline shows it."""
    return _NAMES[action.op]


def chrome_trace(timeline: Timeline, scale: float = 1.0) -> dict[str, object]:
    """The Chrome trace format (Perfetto opens it): a process a rank, a thread a lane.

    Args:
        scale: microseconds in one time unit.
    """
    records: list[dict[str, object]] = []
    for rank in range(timeline.num_ranks):
        records.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for number, lane in enumerate(LANES):
            name = {"name": lane}
            records.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": name})
    records += [_record(event, scale) for event in timeline.events]
    return {"traceEvents": records, "displayTimeUnit": "ms"}


def _record(event: Event, scale: float) -> dict[str, object]:
    action = event.action
    return {
        "ph": "X",
        "name": str(action),
        "cat": action.op.value,
        "pid": event.rank,
        "tid": LANES.index(event.lane),
        "ts": event.start * scale,
        "dur": (event.end - event.start) * scale,
        "args": {"stage": action.stage, "microbatch": action.microbatch, "replica": action.replica, "step": action.step},
    }
