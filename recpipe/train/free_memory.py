"""Memory that this machine has left for its ranks, as far as the system tells: MemAvailable, cgroups (v1, v2), RLIMIT_AS."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def free_of_machine() -> float:
    """Bytes that all processes here together may still take; infinite where nothing tells."""
    return min((_available(), *_left_in_groups()), default=math.inf)


def free_of_process() -> float:
    """Bytes of address space that this process may still take (`ulimit -v`)."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return math.inf
    return soft - _number(_PROC / "self" / "statm", 0.0) * resource.getpagesize()


def _available() -> float:
    return _field(_PROC / "meminfo", "MemAvailable:", 1024)


def _left_in_groups() -> Iterator[float]:
    """What each control group above this process has left; page cache that can go counts as free."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = _CGROUP / controllers
            names = (
                ("memory.max", "memory.current")
                if not controllers
                else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            )
            here = top / path.lstrip("/")
            for folder in (here, *(one for one in here.parents if top in one.parents), top):
                used = _number(folder / names[1], math.nan)
                left = (
                    _number(folder / names[0], math.inf)
                    - used
                    + _field(folder / "memory.stat", "inactive_file", 1, 0.0)
                )
                if not math.isnan(left):
                    yield left


def _field(file: Path, name: str, unit: int, other: float = math.inf) -> float:
    return next((float(line.split()[1]) * unit for line in _lines(file) if line.split()[:1] == [name]), other)


def _number(file: Path, other: float) -> float:
    """The first number of a file; `other` where there is none (``max``)."""
    words = " ".join(_lines(file)).split()
    return float(words[0]) if words and words[0].isdigit() else other


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
