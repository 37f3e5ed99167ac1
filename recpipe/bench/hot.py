"""Where a step's time goes on this rank: torch's own operators by the wall clock, and functions by file in processor time."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

_TOP = 40
_Place = tuple[str, int, str]
_HERE = Path(__file__).resolve().parents[2]


def profile(side: Any, steps: int) -> dict[str, Any]:
    """Profiles `steps` steps twice, each way by itself; both slow a step down.

    Returns:
        ``operators`` and ``functions``: rows of (name, calls a step, own milliseconds a step, milliseconds with what it
        called), the costliest first.
    """
    with torch_profile(activities=[ProfilerActivity.CPU]) as operators:
        for _ in range(steps):
            side.step()
    # Processor time of this thread: what others do on the machine, and waiting, are not in it.
    python = cProfile.Profile(time.thread_time)
    python.enable()
    for _ in range(steps):
        side.step()
    python.disable()
    return {"operators": _operators(operators, steps), "functions": _functions(python, steps)}


def _operators(found: Any, steps: int) -> list[tuple[str, float, float, float]]:
    rows = [
        (one.key, one.count / steps, one.self_cpu_time_total / 1e3 / steps, one.cpu_time_total / 1e3 / steps)
        for one in found.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[2])[:_TOP]


def _functions(found: cProfile.Profile, steps: int) -> list[tuple[str, float, float, float]]:
    stats: dict[_Place, tuple[int, int, float, float, dict[_Place, Any]]] = pstats.Stats(found).stats  # type: ignore[attr-defined]
    rows = []
    for place, (_, calls, own, whole, callers) in stats.items():
        if place[0] != "~":
            rows.append((_name(*place), calls / steps, own * 1e3 / steps, whole * 1e3 / steps))
            continue
        # What is not Python belongs to the line that calls it.
        for caller, (_, part, own_part, whole_part) in callers.items():
            rows.append(
                (f"{_name(*place)} < {_name(*caller)}", part / steps, own_part * 1e3 / steps, whole_part * 1e3 / steps)
            )
    return sorted(rows, key=lambda row: -row[2])[:_TOP]


def _name(file: str, line: int, function: str) -> str:
    """Short: inside this project from its root, elsewhere from the package."""
    path = Path(file)
    if path.is_relative_to(_HERE) and "site-packages" not in path.parts:
        return f"{path.relative_to(_HERE)}:{line} {function}"
    if file == "~":
        return (
            function.removeprefix("<built-in method ")
            .removeprefix("<method ")
            .split("'")[1 if "'" in function else 0]
            .rstrip(">")
        )
    return f"{'/'.join(path.parts[-2:])}:{line} {function}"
