"""A Gantt chart in text: one row a rank for compute, and one for its exchanges where they take time."""

from __future__ import annotations

from recpipe.schedule.draw.style import PALETTE, short
from recpipe.schedule.ir import COMPUTE_OPS, Action
from recpipe.schedule.timeline import Event, Timeline

MAX_RANKS = 32
"""Ranks drawn; a chart of more tells a reader nothing."""


def gantt(timeline: Timeline, width: int = 120, color: bool = False) -> str:
    """Draw `timeline` in `width` columns.

    A box is ``F3`` where it has room, its letter where it has one column. Idle time is a dot.
    """
    shown = range(min(timeline.num_ranks, MAX_RANKS))
    head = len(f"rank {max(shown, default=0)} ")
    columns = _columns(timeline, max(20, width - head - 1))
    lines = []
    for rank in shown:
        lines.append(f"rank {rank}".ljust(head) + _row(timeline, rank, ("compute",), columns, color))
        moving = ("embedding", "reduce")
        if any(e.end > e.start for e in timeline.by_rank[rank] if e.lane in moving):
            lines.append("  wire".ljust(head) + _row(timeline, rank, moving, columns, color))
    if timeline.num_ranks > MAX_RANKS:
        lines.append(f"... and {timeline.num_ranks - MAX_RANKS} more ranks")
    return "\n".join([*lines, " " * head + _axis(timeline, columns)])


def _columns(timeline: Timeline, most: int) -> int:
    """Columns of the chart: three for the shortest compute box if there is room."""
    lengths = [e.end - e.start for e in timeline.events if e.action.op in COMPUTE_OPS and e.end > e.start]
    if not lengths:
        return most
    return min(most, max(20, round(3 * timeline.makespan / min(lengths))))


def _row(timeline: Timeline, rank: int, lanes: tuple[str, ...], columns: int, color: bool) -> str:
    scale = columns / timeline.makespan if timeline.makespan else 0.0
    cells, at = [], 0
    for event in timeline.by_rank[rank]:
        start, end = round(event.start * scale), round(event.end * scale)
        start = max(start, at)
        if event.lane in lanes and end > start:
            cells.append("·" * (start - at) + _box(event, end - start, timeline.layer_of(event) % 2 == 1, color))
            at = end
    return "".join(cells) + "·" * (columns - at)


def _box(event: Event, room: int, second: bool, color: bool) -> str:
    action = event.action
    label = _label(action, room, second)
    text = label.ljust(room, "-" if action.op in COMPUTE_OPS else "~")
    if not color:
        return text
    red, green, blue = (int(PALETTE[action.op][k : k + 2], 16) for k in (1, 3, 5))
    return f"\x1b[48;2;{red};{green};{blue}m\x1b[30m{text.replace('-', ' ').replace('~', ' ')}\x1b[0m"


def _label(action: Action, room: int, second: bool) -> str:
    """``F3``, in small letters for every second chunk or direction of a rank.

    A table or update op that has one column is its last letter.
    """
    name = action.op.value
    if action.op not in COMPUTE_OPS:
        return name[-1].lower() if room == 1 else (name if name == short(action) else name + short(action))[:room]
    text = name + short(action)
    return (text.lower() if second else text)[:room]


def _axis(timeline: Timeline, columns: int) -> str:
    end = f"{timeline.makespan:g} {timeline.unit}"
    return "0" + " " * max(1, columns - len(end) - 1) + end
