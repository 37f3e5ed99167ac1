"""The lines that did not parse: written to a file, and refused when they are too many."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.units import Unit
from recpipe.errors import DataError

QUARANTINE = "quarantine.jsonl"


def write_quarantine(
    directory: Path,
    sources: list[Source],
    formats: list[Format],
    units: list[Unit],
    max_share: float,
    log: Callable[[str], None],
) -> int:
    """Write file, line number (from 1), reason and beginning of every bad line; returns how many there are.

    Raises:
        DataError: their share is above `max_share`.
    """
    lines = bad = before = 0
    source = -1
    reasons: Counter[str] = Counter()
    path = directory / QUARANTINE
    with path.open("w", encoding="utf-8") as file:
        for unit in units:
            if unit.source != source:
                source, before = unit.source, formats[unit.source].header_lines
            for entry in unit.bad:
                record = {
                    "file": sources[source].path.name,
                    "line": before + entry.line + 1,
                    "reason": entry.reason,
                    "text": entry.text,
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                reasons[entry.reason] += 1
            before += unit.lines
            lines += unit.records
            bad += len(unit.bad)
    if bad:
        log(f"{bad:,} of {lines:,} lines are bad: {_say(reasons)}; see {path.name}")
    if bad > max_share * lines:
        raise DataError(
            f"{bad:,} of {lines:,} lines are bad ({bad / lines:.2%}), more than data.max_bad_share={max_share:.2%} "
            f"allows: {_say(reasons)}. They are listed in {path}"
        )
    return bad


def _say(reasons: Counter[str]) -> str:
    """The most frequent reasons."""
    return ", ".join(f"{count:,} x {reason}" for reason, count in reasons.most_common(3))
