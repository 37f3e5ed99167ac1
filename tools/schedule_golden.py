"""Rewrite the golden programs of ``tests/schedule/golden``. Read the diff before you commit it.

    python -m tools.schedule_golden
"""

from __future__ import annotations

from pathlib import Path

from recpipe.schedule.assemble import assemble
from recpipe.schedule.families import FAMILIES, build
from recpipe.schedule.families.base import Request
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.text import format_program

GOLDEN = Path(__file__).parents[1] / "tests" / "schedule" / "golden"


def main() -> None:
    for name in FAMILIES:
        made = build(name, Request(4, 4 if name == "cyclic" else 8))
        (GOLDEN / f"{name}_4_8.txt").write_text(format_program(made))
    for mode in ("ahead", "spread"):
        complete = assemble("1f1b", Request(2, 3), Exchange(mode), steps=2, lanes=2)
        (GOLDEN / f"1f1b_{mode}_2_3.txt").write_text(format_program(complete))


if __name__ == "__main__":
    main()
