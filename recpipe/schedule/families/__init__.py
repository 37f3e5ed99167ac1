"""The families of schedules, by name. To add one: a file with `build` and `FAMILY`, and a line here."""

from __future__ import annotations

from recpipe.errors import ScheduleError
from recpipe.schedule.families import (
    chimera,
    cyclic,
    dualpipe,
    gpipe,
    greedy,
    interleaved,
    interleaved_zb,
    looped_bfs,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zbv,
)
from recpipe.schedule.families.base import Family, Request
from recpipe.schedule.ir import Program

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        gpipe.FAMILY,
        one_f_one_b.FAMILY,
        interleaved.FAMILY,
        looped_bfs.FAMILY,
        zb_h1.FAMILY,
        zb_h2.FAMILY,
        interleaved_zb.FAMILY,
        zbv.FAMILY,
        chimera.FAMILY,
        dualpipe.FAMILY,
        dualpipe.FAMILY_V,
        cyclic.FAMILY,
        greedy.FAMILY,
    )
}


def build(name: str, request: Request) -> Program:
    """Compute order of one step. Raises ScheduleError for an unknown name or a request the family cannot meet."""
    if name not in FAMILIES:
        raise ScheduleError(f"no schedule {name!r}. Known: auto, {', '.join(FAMILIES)}.")
    for key in ("ranks", "microbatches", "chunks"):
        if getattr(request, key) < 1:
            raise ScheduleError(f"{name}: {key} must be at least 1, not {getattr(request, key)}.")
    return FAMILIES[name].build(request)
