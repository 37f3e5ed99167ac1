"""Chimera: pipelines in both directions over the same ranks, each filling the bubbles of the other.

One unit is N = D microbatches. With 2f pipelines, pipeline pair i starts D/f * i ranks further on. Past one unit:
concatenate units, take forwards in pairs (double), or split every microbatch in two and take forwards in pairs (halve).
"""

from __future__ import annotations

from recpipe.errors import ScheduleError
from recpipe.schedule.families.base import Family, Orders, Request, act, one_step, refuse_microbatches
from recpipe.schedule.ir import Action, Op, Placement, Program

BEYOND = ("concatenate", "double", "halve")


def build(request: Request) -> Program:
    """D even, f divides D/2, M a multiple of 2f. Raises ScheduleError that says which would do."""
    depth, pipelines = request.ranks, request.pipelines
    _refuse(request)
    halves = 2 if request.beyond == "halve" else 1
    each = request.microbatches * halves // pipelines
    doubled = request.beyond != "concatenate"
    place = _placement(depth, pipelines)
    return one_step("chimera", place, each, _by_slot(place, each, doubled))


def _refuse(request: Request) -> None:
    depth, pipelines = request.ranks, request.pipelines
    if depth % 2:
        raise ScheduleError(f"chimera needs an even number of ranks, not {depth}. mesh.stages={depth + 1} would do.")
    fits = [2 * f for f in range(1, depth // 2 + 1) if (depth // 2) % f == 0]
    if pipelines not in fits:
        raise ScheduleError(f"chimera on {depth} ranks: schedule.pipelines={pipelines} is not one of {fits}.")
    if request.beyond not in BEYOND:
        raise ScheduleError(f"schedule.beyond={request.beyond!r} is not one of {', '.join(BEYOND)}.")
    why = f"each of its {pipelines} pipelines takes the same number"
    refuse_microbatches("chimera", request.microbatches, pipelines, pipelines, why)


def _placement(depth: int, pipelines: int) -> Placement:
    shift = 2 * depth // pipelines
    down = [tuple((s + i * shift) % depth for s in range(depth)) for i in range(pipelines // 2)]
    up = [tuple((depth - 1 - s + i * shift) % depth for s in range(depth)) for i in range(pipelines // 2)]
    return Placement(tuple(row for pair in zip(down, up, strict=True) for row in pair))


def _by_slot(place: Placement, each: int, doubled: bool) -> Orders:
    """Put every action at its slot and read off each rank's order. A new unit starts in the tail of the one before."""
    depth, pipelines = place.num_stages, place.num_replicas
    unit = depth // pipelines * (2 if doubled else 1)
    length = depth * (3 if doubled else 2)
    slots: list[list[tuple[int, int, Action]]] = [[] for _ in range(depth)]
    for replica in range(pipelines):
        for stage in range(depth):
            row = slots[place.ranks[replica][stage]]
            for m in range(each):
                start, k = m // unit * length, m % unit
                ahead = start + stage + 2 * (k // 2 if doubled else k)
                back = start + depth + (depth - 1 - stage) + 2 * k
                row.append((ahead, m, act(Op.F, stage, m, replica)))
                row.append((back, m, act(Op.B, stage, m, replica)))
    return [[action for _, _, action in sorted(row)] for row in slots]


FAMILY = Family("chimera", "pipelines in both directions", build)
