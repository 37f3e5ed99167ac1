"""A bar chart of a comparison; needs matplotlib (the optional extra ``bench``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from recpipe.bench.compare import Section
from recpipe.bench.report import title

logger = logging.getLogger(__name__)


def plot(sections: Sequence[Section], file: Path) -> bool:
    """Writes one panel a section, each contestant's median with its least and greatest block; says whether it could."""
    if find_spec("matplotlib") is None:
        logger.warning("no plot: matplotlib is not installed (pip install 'recpipe[bench]')")
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 + 0.9 * sum(0.6 + 0.35 * len(section.rows) for section in sections)))
    panels = figure.subplots(len(sections), 1, squeeze=False)[:, 0]
    for panel, section in zip(panels, sections, strict=True):
        _draw(panel, section)
    figure.tight_layout()
    figure.savefig(file)
    return True


def _draw(panel, section: Section) -> None:  # type: ignore[no-untyped-def]
    names = [row.contestant.label for row in section.rows]
    middle = [1e3 * row.middle for row in section.rows]
    spread = [
        [1e3 * (row.middle - min(row.seconds)) for row in section.rows],
        [1e3 * (max(row.seconds) - row.middle) for row in section.rows],
    ]
    colors = ["tab:gray" if name.startswith("TorchRec") else "tab:blue" for name in names]
    panel.barh(names, middle, xerr=spread, color=colors, capsize=3)
    limits = [1e3 * section.limit.of(row) for row in section.rows]
    panel.scatter(limits, names, marker="|", color="black", s=120, zorder=3, label="limit")
    panel.invert_yaxis()
    panel.set_title(title(section), fontsize=9, loc="left")
    panel.set_xlabel("ms a step (bar: median, whiskers: least and greatest block)", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.legend(fontsize=8, loc="lower right")
