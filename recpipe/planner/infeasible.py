"""When nothing fits: which tables are in the way, how many bytes are missing, and the smallest changes that would fit.

Every change that is offered was planned again: it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.errors import RecpipeError
from recpipe.planner.designs import Choice
from recpipe.planner.found import Found
from recpipe.planner.memory import cluster_of, rank_memory
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.report.terminal import wrapped
from recpipe.planner.search import search
from recpipe.planner.table_costs import Allowed

_MOST_NODES = 512
_SECONDS = 5.0


def explain_misfit(problem: Problem, found: Found) -> str:
    """The message of an infeasible problem."""
    best = found.best
    assert best.design is not None and best.assignment is not None
    memory = rank_memory(problem, best.design, best.assignment.chosen)
    cluster = cluster_of(problem, best.design)
    limit = [group.memory * (1 - problem.topology.reserved) for group in problem.topology.rank_groups]
    over = [(one.total - limit[rank], rank) for rank, one in enumerate(memory) if one.total > limit[rank]]
    worst = max(over)[1]
    parts = {key: value for key, value in memory[worst].__dict__.items() if value > 0}
    shown = ", ".join(f"{key} {_size(value)}" for key, value in sorted(parts.items(), key=lambda item: -item[1])[:6])
    lines = [
        f"nothing fits {problem.topology.name}: the best attempt ({best.choice.label}) lacks "
        f"{best.assignment.shortfall:,.0f} bytes ({_size(best.assignment.shortfall)}) on rank {worst}, "
        f"{len(over)} of {len(memory)} ranks are too full",
        f"  rank {worst} may hold {_size(limit[worst])} and would hold {_size(memory[worst].total)}: {shown}",
        "  tables that do not fit:",
        *(f"    {line}" for line in _tables_in_the_way(problem, float(cluster.free.max()), found)),
        "  changes that would fit, each planned again:",
    ]
    fixes = [f"    {fix}" for fix in fixes_of(problem, best.choice)]
    none = ["    none of those tried: more ranks, free types, smaller rows, 16-bit rows"]
    return wrapped("\n".join([*lines, *(fixes or none)]))


def _size(value: float) -> str:
    for size, mark in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.4g} {mark}"
    return f"{value:.0f} bytes"


def _tables_in_the_way(problem: Problem, room: float, found: Found) -> Iterator[str]:
    """Tables of which one shard alone is larger than what the tower leaves of a rank, else the largest ones."""
    assert found.best.assignment is not None
    chosen = found.best.assignment.chosen
    sizes = [kind.held + kind.state for kind, _ in chosen]
    alone = [i for i, size in enumerate(sizes) if size.max() > room]
    largest = sorted(range(len(chosen)), key=lambda i: -float(sizes[i].sum()))[:5]
    for index in alone or largest:
        spec, kind = problem.tables[index].spec, chosen[index][0]
        need, shard = float(sizes[index].sum()), float(sizes[index].max())
        line = f"{spec.name}: {spec.num_rows:,} x {spec.dim}, {_size(need)} with optimizer state, {kind.sharding}"
        if index in alone:
            line += f", a shard of {_size(shard)} is {shard - room:,.0f} bytes more than a rank has left"
        yield line


def fixes_of(problem: Problem, choice: Choice) -> Iterator[str]:
    """Changes that make the problem fit, smallest first of each kind.

    Args:
        choice: the best attempt's; a plan for it is enough to show that a change fits.
    """
    quick = replace(problem, scope=_narrow(problem, choice))
    free = replace(quick, allowed={table.spec.name: Allowed(SHARDING_TYPES) for table in problem.tables})
    bound = any(len(rule.sharding) < len(SHARDING_TYPES) or rule.ranks for rule in problem.allowed.values())
    freed = bound and _fits(free)
    if freed:
        yield "other sharding types than those allowed"
    nodes = _least(_MOST_NODES, lambda count: _fits(more_nodes(quick, count)))
    if nodes is not None:
        yield f"{nodes} more node(s): {more_nodes(problem, nodes).topology.world:,} ranks"
    elif bound and not freed:
        nodes = _least(_MOST_NODES, lambda count: _fits(more_nodes(free, count)))
        if nodes is not None:
            ranks = more_nodes(problem, nodes).topology.world
            yield f"other sharding types than those allowed, and {nodes} more node(s): {ranks:,} ranks"
    if problem.row_element == 4 and _fits(replace(quick, row_element=2)):
        yield "16-bit rows"
    dim = _smaller_rows(quick)
    if dim is not None:
        yield f"rows of {dim} floats instead of {problem.tables[0].spec.dim} (model.embedding_dim)"
    rows = _fewer_rows(quick)
    if rows is not None:
        yield f"no table above {rows:,} rows (data.max_ids)"
    if problem.table_optimizer in ("adam", "adagrad") and _fits(replace(quick, table_optimizer="rowwise_adagrad")):
        yield "optimizer/table=rowwise_adagrad"


def _narrow(problem: Problem, choice: Choice) -> Scope:
    return replace(
        problem.scope,
        stages=(choice.stages,),
        microbatches=(choice.microbatches,),
        schedules=(choice.schedule,),
        modes=(choice.mode,),
        chunks=(choice.chunks or 2,),
        seconds=_SECONDS,
        effort=200,
        partitions=0,
    )


def _fits(problem: Problem) -> bool:
    try:
        return search(problem).fits
    except RecpipeError:
        return False


def more_nodes(problem: Problem, count: int) -> Problem:
    """More of the last kind of node; the rows of a rank stay as they are."""
    top = problem.topology
    last = top.nodes[-1]
    bigger = replace(top, nodes=(*top.nodes[:-1], replace(last, count=last.count + count)))
    return replace(problem, topology=bigger, global_batch=problem.global_batch * bigger.world // top.world)


def _least(most: int, fits: Callable[[int], bool]) -> int | None:
    """Smallest number from 1 on that fits: doubled until one does, then halved; None if none up to `most` does."""
    high = 1
    while high <= most and not fits(high):
        high *= 2
    if high > most:
        return None
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def _smaller_rows(problem: Problem) -> int | None:
    """Largest smaller row, in multiples of 4, that fits."""
    dim = problem.tables[0].spec.dim
    steps = [d for d in (dim * 3 // 4, dim // 2, dim // 4, dim // 8) if d >= 4]
    for smaller in (d - d % 4 for d in steps):
        tables = tuple(replace(t, spec=replace(t.spec, dim=min(smaller, t.spec.dim))) for t in problem.tables)
        if _fits(replace(problem, tables=tables)):
            return smaller
    return None


def _fewer_rows(problem: Problem) -> int | None:
    """Largest cap on the rows of a table, in steps of two thirds, that fits."""
    cap = max(table.spec.num_rows for table in problem.tables)
    for _ in range(24):
        cap = math.floor(cap * 2 / 3)
        if cap < 100:
            return None
        tables = tuple(replace(t, spec=replace(t.spec, num_rows=min(t.spec.num_rows, cap))) for t in problem.tables)
        if _fits(replace(problem, tables=tables)):
            return cap
    return None
