"""Programs that many tests share: every family at a size it accepts."""

from __future__ import annotations

from recpipe.schedule.assemble import assemble
from recpipe.schedule.cost import Cost
from recpipe.schedule.families import FAMILIES
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Program
from recpipe.schedule.metrics import Metrics, measure
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import simulate

ALL = tuple(FAMILIES)
SYNCHRONOUS = tuple(name for name in ALL if name != "cyclic")


def request(name: str, ranks: int = 2, microbatches: int = 4, **options: object) -> Request:
    """A request that family `name` accepts: one microbatch a rank for cyclic."""
    return Request(ranks, ranks if name == "cyclic" else microbatches, **options)  # type: ignore[arg-type]


def program(name: str, mode: str = "none", steps: int = 1, lanes: int = 1, **options: int) -> Program:
    return assemble(name, request(name, **options), Exchange(mode), steps=steps, lanes=lanes)


def measured(made: Program, cost: Cost) -> Metrics:
    return measure(made, simulate(made, cost), cost)
