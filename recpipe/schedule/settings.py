"""The settings of a schedule and of its costs as plain dataclasses: the schema of the `schedule` and `cost` groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Program
from recpipe.schedule.profile import load_profile, profiled_cost


@dataclass
class ScheduleSettings:
    """Group `schedule`. Settings that a family does not use are ignored by it."""

    name: str = "1f1b"
    """A family, or auto."""
    microbatches: Optional[int] = 8  # noqa: UP045 - Hydra's structured configs need Optional
    """Microbatches of one step, all replicas of a lane together; null, in a run: enough for the pipeline to fill."""
    embedding: str = "none"
    """How table rows travel: none (on paper only), step, route (ids one step ahead), ahead (rows, too, where that is exact) or
    spread (gradients after their step, too, where that is)."""
    buffers: int = 0
    """Microbatches whose rows may be in flight or unused at once; 0 for no limit."""
    fill: bool = False
    """Move table lookups and updates into bubbles, by simulation."""
    chunks: int = 2
    """Pieces of the tower a rank runs, for looped families."""
    pipelines: int = 2
    """Pipelines of Chimera, both directions together."""
    beyond: str = "concatenate"
    """How Chimera goes past one unit: concatenate, double or halve."""
    memory: Optional[float] = None  # noqa: UP045
    """Activations a rank may hold, in microbatches of its full share."""
    copies: Optional[int] = None  # noqa: UP045
    """Most weight copies, for auto."""
    try_microbatches: list[int] = field(default_factory=list)
    """Microbatch counts that auto tries; empty for `microbatches` only. Costs speak of `microbatches`."""
    try_chunks: list[int] = field(default_factory=lambda: [2, 3])
    """Chunk counts that auto tries."""


@dataclass
class LinkSettings:
    """One tier of the network."""

    alpha: float = 0.0
    bandwidth: float = float("inf")


@dataclass
class CostSettings:
    """Group `cost`; see `recpipe.schedule.cost.Cost` for what each number means."""

    file: str = ""
    """A profile that `recpipe profile` wrote; it takes the place of all numbers below, times in milliseconds."""
    unit: str = "slot"
    """Name of the time unit, for labels."""
    microseconds: float = 1000.0
    """Microseconds in one time unit, for the Chrome trace."""
    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    overhead: float = 0.0
    optimizer: float = 0.0
    profile: list[float] = field(default_factory=list)
    activation_bytes: float = 1.0
    weight_bytes: float = 1.0
    near: LinkSettings = field(default_factory=LinkSettings)
    far: LinkSettings = field(default_factory=LinkSettings)
    ranks_per_node: int = 0
    delay: list[float] = field(default_factory=list)
    route: float = 0.0
    lookup: float = 0.0
    update: float = 0.0
    row_bytes: float = 0.0
    first_use: list[float] = field(default_factory=list)
    early: float = 0.5
    fused: float = 1.0
    host: str = "async"


def to_cost(settings: CostSettings) -> Cost:
    """The record the simulator takes. Raises ConfigError for a number out of range."""
    values: dict[str, Any] = {key: getattr(settings, key) for key in CostSettings.__dataclass_fields__}
    for key in ("file", "unit", "microseconds"):
        del values[key]
    for key in ("near", "far"):
        values[key] = Link(values[key].alpha, values[key].bandwidth)
    for key in ("profile", "delay", "first_use"):
        values[key] = tuple(values[key])
    return Cost(**values)


def cost_of(settings: CostSettings, program: Program, ratio: float = 1.0) -> Cost:
    """Costs of a program: profiled where there is a file, else the numbers given.

    Args:
        ratio: size of a microbatch over the one that the numbers speak of.

    Raises:
        ConfigError: the profile is missing or does not fit, or a number is out of range.
    """
    if settings.file:
        return profiled_cost(load_profile(Path(settings.file)), program)
    return to_cost(settings).scaled(ratio)


def to_request(settings: ScheduleSettings, ranks: int, cost: Cost) -> Request:
    """The request a family takes."""
    keys = ("microbatches", "chunks", "pipelines", "beyond", "memory")
    return Request(ranks=ranks, cost=cost, **{key: getattr(settings, key) for key in keys})
