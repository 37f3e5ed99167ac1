"""A machine as `recpipe profile` measured it, in the planner's terms: links, compute, table work, and what issuing takes.

A profile says what one way to keep the tables takes. Rates are chosen so that the planner's own count of that way takes as
long; other ways follow from their counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from recpipe.embedding.layout import TableLayout
from recpipe.errors import ConfigError
from recpipe.planner.build import chosen_of, ranks_of
from recpipe.planner.loads import Cluster, Loads, add_all
from recpipe.planner.problem import Problem
from recpipe.planner.table_costs import Shape
from recpipe.planner.topology import Nodes, Tier
from recpipe.planner.tower import Line, Tower, WholeTower
from recpipe.schedule.profile import Cut, Profile

_ISSUED = ("PO", "EO", "EG")
MARGIN = 0.05
"""About the median error of a step predicted from a profile (docs/performance.md): below it, simpler is better."""


def profiled(problem: Problem, profile: Profile, layouts: Sequence[TableLayout]) -> Problem:
    """`problem` with what was measured in the place of what its topology says.

    Args:
        layouts: the tables of the profiled run, in feature order.

    Raises:
        ConfigError: the profile is of another model or of another number of ranks.
    """
    _check(problem, profile)
    message = Tier(profile.alpha * 1e-3, profile.bandwidth * 1e3)
    tier = replace(message, bandwidth=profile.exchange * 1e3) if profile.exchange else message
    linked = replace(problem.topology, near=tier, far=tier, message=message, host="sync", measured=True)
    loads = _profiled_loads(replace(problem, topology=linked), profile, layouts)
    nodes = tuple(_calibrated(group, profile, loads) for group in linked.nodes)
    issue = {
        int(stages): {name: _seconds(line) for name, line in mesh.lines.items() if name.startswith(_ISSUED)}
        for stages, mesh in profile.meshes.items()
    }
    return replace(
        problem,
        topology=replace(linked, nodes=nodes),
        tower=_tower(problem.tower, profile),
        issue=issue,
        scope=replace(problem.scope, margin=MARGIN),
    )


def _check(problem: Problem, profile: Profile) -> None:
    for what, here, there in (
        ("ranks", problem.topology.world, profile.world),
        ("model", problem.model, profile.model),
        ("blocks", len(problem.tower.blocks), len(profile.blocks)),
    ):
        if here != there:
            raise ConfigError(f"cost.file: the profile was made with {what}={there}, this plan has {what}={here}")


def _seconds(line: tuple[float, float]) -> Line:
    return Line(line[0] * 1e-3, line[1] * 1e-3)


def _tower(tower: Tower, profile: Profile) -> Tower:
    whole = {int(stages): _whole(cut) for stages, cut in profile.cuts.items()}
    return replace(tower, whole=whole, weight=tuple(profile.blocks))


def _whole(cut: Cut) -> WholeTower:
    """Sums over stages; where I and W were not measured apart, halves of B."""
    lines = {op: _sum(cut.compute, op) for op in ("F", "B", "I", "W")}
    half = Line(lines["B"].fixed / 2, lines["B"].row / 2)
    apart = {op: lines[op] if lines[op].row or lines[op].fixed else half for op in ("I", "W")}
    optimizers = [line[0] for name, line in cut.compute.items() if name.startswith("OPT")]
    return WholeTower({**lines, **apart}, float(np.mean(optimizers)) * 1e-3)


def _sum(compute: Mapping[str, tuple[float, float]], op: str) -> Line:
    found = [line for name, line in compute.items() if name[: len(op)] == op and name[len(op) :].isdigit()]
    return _seconds((sum(line[0] for line in found), sum(line[1] for line in found)))


def _profiled_loads(problem: Problem, profile: Profile, layouts: Sequence[TableLayout]) -> Loads:
    """What the planner counts for the tables of the profiled run, one replica a rank."""
    world = problem.topology.world
    rows = profile.global_rows / world
    shape = Shape(world, problem.topology.local_size, world, rows, problem.table_optimizer, problem.row_element)
    chosen = [
        chosen_of(problem, index, shape, layout.sharding, layout.exchange, ranks_of(layout, shape.local_size))
        for index, layout in enumerate(layouts)
    ]
    return add_all(Cluster(problem.topology, tuple(range(world)), np.zeros(world)), chosen)


def _calibrated(group: Nodes, profile: Profile, loads: Loads) -> Nodes:
    """Rates at which the profiled tables take as long as they took. Pooling is part of the measured tower."""
    lines = profile.meshes["1"].lines
    lookup, update, route = (
        max(1e-3 * sum(lines[name][0] for name in ops if name in lines), 1e-9)
        for ops in (("EL0", "PL0"), ("EU0",), ("ED0",))
    )
    ids = float(loads.cluster.exchange_by_rank(loads.ids).max())
    return replace(
        group,
        gather=float(loads.data[3].max()) / lookup,
        update=float(loads.data[4].max()) / update,
        pool=inf,
        dedup=max(0.0, route - ids) / loads.dedup if loads.dedup else group.dedup,
    )
