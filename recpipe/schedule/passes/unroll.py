"""Several steps in one program, so that overlap across steps is visible and checked."""

from __future__ import annotations

from dataclasses import replace

from recpipe.schedule.ir import Program


def unroll(program: Program, steps: int) -> Program:
    """Repeat a one-step program `steps` times, rank by rank."""
    orders = [
        tuple(action._replace(step=step) for step in range(steps) for action in order) for order in program.orders
    ]
    fused = frozenset(action._replace(step=step) for step in range(steps) for action in program.fused)
    return replace(program, orders=tuple(orders), steps=steps, fused=fused)
