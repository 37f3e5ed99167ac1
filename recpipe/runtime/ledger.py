"""What every exchange, message and reduction of the recorded steps cost: how long it was under way, and who waited for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recpipe.runtime.recorder import Wait
from recpipe.schedule.deps import is_communication
from recpipe.schedule.timeline import Event

TITLES = {
    "ED": "ids to owners",
    "PO": "rows, early",
    "EO": "rows",
    "EG": "row gradients",
    "DG": "row gradients, deferred",
    "SA": "activations",
    "SG": "gradients",
    "R": "dense gradients",
}
_ENDS = {"RA": "SA", "RG": "SG"}


@dataclass(frozen=True)
class Entry:
    """One kind of communication in one step on one rank, in milliseconds.

    Args:
        op: by its sending op.
        under_way: sum over its messages from issue to arrival.
        exposed: time that compute stood still for it.
        waiting: by waiting stage and op (``"F0"``), the parts of `exposed`.
    """

    step: int
    rank: int
    op: str
    under_way: float
    exposed: float
    waiting: dict[str, float]

    @property
    def hidden(self) -> float:
        return max(0.0, self.under_way - self.exposed)


def make_ledger(events: Iterable[Event], waits: Iterable[Wait]) -> list[Entry]:
    """One entry for each (step, rank, op) that took time, in this order. Received messages count where they arrive."""
    spans: dict[tuple[int, int, str], float] = defaultdict(float)
    held: dict[tuple[int, int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if is_communication(event.action.op) and event.action.op.value not in _ENDS.values():
            op = event.action.op.value
            spans[event.action.step, event.rank, _ENDS.get(op, op)] += event.end - event.start
    for wait in waits:
        op = wait.source.op.value
        key = (wait.source.step, wait.rank, _ENDS.get(op, op))
        held[key][f"{wait.waiting.op}{wait.waiting.stage}"] += wait.milliseconds
    keys = sorted(spans.keys() | held.keys())
    return [Entry(*key, spans[key], sum(held[key].values()), dict(held[key])) for key in keys]


def totals(ledger: Sequence[Entry], num_steps: int) -> dict[str, dict[str, float]]:
    """By op, milliseconds a step over all ranks: under way, hidden, exposed."""
    found: dict[str, dict[str, float]] = {}
    for entry in ledger:
        row = found.setdefault(entry.op, {"under_way": 0.0, "hidden": 0.0, "exposed": 0.0})
        for name in row:
            row[name] += getattr(entry, name) / num_steps
    return found


def table(ledger: Sequence[Entry], num_steps: int) -> str:
    """The totals and who waited, for people."""
    lines = [f"{'ms a step, all ranks':<22}{'under way':>11}{'hidden':>9}{'exposed':>9}  waiting"]
    for op, row in totals(ledger, num_steps).items():
        who: dict[str, float] = defaultdict(float)
        for entry in ledger:
            if entry.op == op:
                for name, value in entry.waiting.items():
                    who[name] += value / num_steps
        most = ", ".join(f"{name} {value:.1f}" for name, value in sorted(who.items(), key=lambda x: -x[1])[:3])
        figures = f"{row['under_way']:>11.1f}{row['hidden']:>9.1f}{row['exposed']:>9.1f}"
        lines.append(f"{op + ' ' + TITLES.get(op, ''):<22}{figures}  {most}".rstrip())
    return "\n".join(lines)
