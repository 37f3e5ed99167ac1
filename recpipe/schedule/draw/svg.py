"""A Gantt chart as an SVG picture, written by hand: no fonts, scripts or styles from elsewhere."""

from __future__ import annotations

from math import floor, log10
from xml.sax.saxutils import escape

from recpipe.schedule.draw.style import NAMES, PALETTE, short
from recpipe.schedule.ir import COMPUTE_OPS, Op
from recpipe.schedule.timeline import LANES, Event, Timeline

LEFT, TOP, WIDTH = 70, 72, 1200
ROW, WIRE, GAP = 24, 7, 10
MAX_RANKS = 64
"""Ranks drawn; more would make a picture that no viewer scrolls."""


def svg(timeline: Timeline, title: str, span: float = 0.0) -> str:
    """Draw `timeline` under `title`: compute in tall boxes, communication in thin strips, both to one time axis.

    Where a rank runs several chunks or directions, those after the first are paler.

    Args:
        span: time that the width stands for; 0 for the makespan.
    """
    scale = WIDTH / (span or timeline.makespan or 1.0)
    lanes = [lane for lane in LANES if lane == "compute" or _takes_time(timeline, lane)]
    height = ROW + WIRE * (len(lanes) - 1) + GAP
    ranks = min(timeline.num_ranks, MAX_RANKS)
    bottom = TOP + ranks * height
    body = [_text(LEFT, 20, title, 15, "start", "bold")]
    body += _legend({e.action.op for e in timeline.events if e.end > e.start})
    body += [_strip(TOP + rank * height) for rank in range(ranks)]
    body += _axis(timeline, scale, bottom)
    for rank in range(ranks):
        body += _rank(timeline, rank, TOP + rank * height, lanes, scale)
    if timeline.num_ranks > ranks:
        body.append(_text(LEFT, bottom + 40, f"and {timeline.num_ranks - ranks} more ranks", 11, "start"))
    size = f'width="{LEFT + WIDTH + 20}" height="{bottom + 50}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>"]) + "\n"


def _strip(top: float) -> str:
    return f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{ROW}" fill="#f2f2f2"/>'


def _takes_time(timeline: Timeline, lane: str) -> bool:
    return any(event.lane == lane and event.end > event.start for event in timeline.events)


def _rank(timeline: Timeline, rank: int, top: float, lanes: list[str], scale: float) -> list[str]:
    found = [_text(LEFT - 8, top + 16, f"rank {rank}", 12, "end")]
    for event in timeline.by_rank[rank]:
        if event.end > event.start and event.lane in lanes:
            found.append(_box(timeline, event, top, lanes.index(event.lane), scale))
    return found


def _box(timeline: Timeline, event: Event, top: float, lane: int, scale: float) -> str:
    x, width = LEFT + event.start * scale, (event.end - event.start) * scale
    y, height = (top, ROW) if lane == 0 else (top + ROW + WIRE * (lane - 1) + 1, WIRE - 2)
    tip = f"<title>{event.action} {event.start:g} to {event.end:g}</title>"
    place = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}"'
    fill = _paler(PALETTE[event.action.op], 0.0 if lane else 0.45 * min(1, timeline.layer_of(event)))
    box = f'<rect {place} fill="{fill}" stroke="white" stroke-width="0.5">{tip}</rect>'
    label = short(event.action)
    if lane or width < 7 * len(label) + 1:
        return box
    ink = "#111" if event.action.op in COMPUTE_OPS else "white"
    return box + _text(x + width / 2, y + 16, label, 11, "middle", "normal", ink)


def _paler(color: str, share: float) -> str:
    """`color` mixed with a share of white."""
    parts = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def _legend(ops: set[Op]) -> list[str]:
    found: list[str] = []
    x, y = LEFT, 30
    for name, op in {NAMES[op]: op for op in PALETTE if op in ops}.items():
        if x + 30 + 7 * len(name) > LEFT + WIDTH:
            x, y = LEFT, y + 18
        found.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{PALETTE[op]}"/>')
        found.append(_text(x + 16, y + 10, name, 11, "start"))
        x += 30 + 7 * len(name)
    return found


def _axis(timeline: Timeline, scale: float, y: float) -> list[str]:
    """Vertical lines at round numbers, and the end."""
    span = timeline.makespan
    if not span:
        return []
    ten = 10 ** floor(log10(span / 8))
    step = next(k * ten for k in (1, 2, 5, 10) if span / (k * ten) <= 16)
    found = []
    for k in range(int(span / step) + 1):
        x = LEFT + k * step * scale
        found.append(f'<line x1="{x:.2f}" y1="{TOP - 4}" x2="{x:.2f}" y2="{y}" stroke="#bbb" stroke-width="0.6"/>')
        found.append(_text(x, y + 14, f"{k * step:g}", 10, "middle"))
    return [*found, _text(LEFT + span * scale, y + 30, f"{span:g} {timeline.unit}", 10, "end")]


def _text(x: float, y: float, words: str, size: int, anchor: str, weight: str = "normal", ink: str = "#111") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{ink}"'
    return f'<text x="{x:.2f}" y="{y:.2f}" {style}>{escape(words)}</text>'
