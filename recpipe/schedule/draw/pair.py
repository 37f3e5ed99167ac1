"""Two Gantt charts in one picture, one over the other, to one time scale: what was measured over what was predicted."""

from __future__ import annotations

import re

from recpipe.schedule.draw.svg import svg
from recpipe.schedule.timeline import Timeline

_SIZE = re.compile(r'<svg [^>]*width="(\d+)" height="([\d.]+)"')


def svg_pair(upper: Timeline, upper_title: str, lower: Timeline, lower_title: str) -> str:
    """Draws both; the shorter is not stretched to the longer."""
    longest = max(upper.makespan, lower.makespan)
    pictures = [svg(upper, upper_title, longest), svg(lower, lower_title, longest)]
    sizes = [_size(picture) for picture in pictures]
    width, height = max(w for w, _ in sizes), sum(h for _, h in sizes)
    moved = pictures[1].replace("<svg ", f'<svg y="{sizes[0][1]:g}" ', 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">'
    return "\n".join([head, pictures[0], moved, "</svg>"]) + "\n"


def _size(picture: str) -> tuple[float, float]:
    found = _SIZE.search(picture)
    assert found is not None
    return float(found[1]), float(found[2])
