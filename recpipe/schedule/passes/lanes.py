"""Identical data-parallel copies: many lanes in one program, or written out rank by rank."""

from __future__ import annotations

from dataclasses import replace

from recpipe.schedule.ir import Placement, Program


def expand(program: Program) -> Program:
    """Write every lane out as replicas and ranks of its own. Same schedule, `lanes` times the size."""
    if program.lanes == 1:
        return program
    place, lanes = program.placement, range(program.lanes)
    width = place.num_ranks
    rows = tuple(tuple(rank + lane * width for rank in row) for lane in lanes for row in place.ranks)
    tables = tuple(rank + lane * width for lane in lanes for rank in place.tables)
    orders = tuple(program.order_of(rank) for rank in range(program.num_ranks))
    shifts = range(0, program.num_copies, place.num_replicas)
    fused = frozenset(action._replace(replica=action.replica + k) for k in shifts for action in program.fused)
    return replace(program, placement=Placement(rows, tables, place.width), orders=orders, lanes=1, fused=fused)
