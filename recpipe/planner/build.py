"""From a configuration to a problem, and from what a search found to a plan (and back)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recpipe.embedding.layout import TableLayout
from recpipe.errors import PlanError
from recpipe.planner.assign import Assigner, Table
from recpipe.planner.designs import Choice, Design, make_design, table_shape
from recpipe.planner.found import Rated
from recpipe.planner.loads import Chosen
from recpipe.planner.memory import cluster_of
from recpipe.planner.plan import MadeFor, Plan, PlannedTable, kernel_of
from recpipe.planner.problem import Problem
from recpipe.planner.table_costs import Shape, make_kind


def made_for(problem: Problem) -> MadeFor:
    """What a plan of this problem holds for."""
    return MadeFor(
        world=problem.topology.world,
        local_size=problem.topology.local_size,
        model=problem.model,
        blocks=tuple(block.name for block in problem.tower.blocks),
        data=problem.data,
        global_batch=problem.global_batch,
        table_optimizer=problem.table_optimizer,
        dense_optimizer=problem.dense_optimizer,
    )


def to_plan(problem: Problem, rated: Rated, predicted: Mapping[str, object] | None = None) -> Plan:
    """The plan of a rated design."""
    assert rated.design is not None and rated.assignment is not None
    choice, design = rated.choice, rated.design
    blocks = problem.tower.blocks
    tables = [_planned(problem, index, chosen) for index, chosen in enumerate(rated.assignment.chosen)]
    return Plan(
        made_for=made_for(problem),
        stages=choice.stages,
        replicas=design.lanes,
        cuts=tuple(blocks[part.start].name for part in design.partition[1:]),
        batch_size=problem.global_batch // design.lanes,
        schedule=choice.schedule,
        microbatches=choice.microbatches,
        chunks=choice.chunks,
        embedding=choice.mode,
        tables=tuple(tables),
        predicted=dict(predicted or {}),
    )


def _planned(problem: Problem, index: int, chosen: Chosen) -> PlannedTable:
    kind, ranks = chosen
    spec = problem.tables[index].spec
    order = node_major(kind.sharding, ranks, problem.topology.local_size)
    kernel = kernel_of(kind.sharding, kind.exchange)
    return PlannedTable(spec.name, spec.num_rows, spec.dim, kind.sharding, kind.exchange, order, kernel)


def node_major(sharding: str, ranks: Sequence[int], local_size: int) -> tuple[int, ...]:
    """Ranks as `make_layout` takes them: of a grid node by node, of other types as they are."""
    if sharding != "grid":
        return tuple(ranks)
    cols = len(ranks) // local_size
    return tuple(ranks[row * cols + col] for col in range(cols) for row in range(local_size))


def _block_major(sharding: str, ranks: Sequence[int], local_size: int) -> tuple[int, ...]:
    """The reverse of `node_major`."""
    if sharding != "grid":
        return tuple(ranks)
    cols = len(ranks) // local_size
    return tuple(ranks[col * local_size + row] for row in range(local_size) for col in range(cols))


def to_rated(problem: Problem, plan: Plan) -> Rated:
    """What a plan costs, rated by the same model as a search's own.

    Raises:
        PlanError, ScheduleError: it cannot run.
    """
    choice = Choice(plan.stages, plan.schedule, plan.microbatches, plan.embedding, plan.chunks)
    names = [block.name for block in problem.tower.blocks]
    starts = [0, *(names.index(name) for name in plan.cuts), len(names)]
    cut = tuple(range(a, b) for a, b in zip(starts, starts[1:], strict=False))
    design = make_design(problem, choice, cut)
    if design.place.num_stages != len(cut):
        raise PlanError(
            f"{plan.schedule} on {plan.stages} ranks has {design.place.num_stages} stages, cuts make {len(cut)}"
        )
    return rate(problem, design, [(table.sharding, table.exchange, table.ranks) for table in plan.tables])


def rate(problem: Problem, design: Design, placed: Sequence[tuple[str, str, Sequence[int]]]) -> Rated:
    """What a design costs with given tables.

    Args:
        placed: sharding type, exchange, and ranks as `make_layout` takes them, of each table.
    """
    shape = table_shape(problem, len(design.consumers))
    chosen = tuple(chosen_of(problem, index, shape, *one) for index, one in enumerate(placed))
    tables = tuple(Table((kind,)) for kind, _ in chosen)
    assigner = Assigner(tables, cluster_of(problem, design), design.model(), problem.topology.local_size)
    return Rated(design.choice, design, assigner.rate(chosen), "given")


def ranks_of(layout: TableLayout, local_size: int) -> tuple[int, ...]:
    """Ranks of a layout as `make_layout` takes them; none of a replicated one."""
    return () if layout.replicated else node_major(layout.sharding, [shard.rank for shard in layout.shards], local_size)


def chosen_of(problem: Problem, index: int, shape: Shape, sharding: str, exchange: str, ranks: Sequence[int]) -> Chosen:
    """A kind on ranks, from the names in a plan.

    Args:
        ranks: as `make_layout` takes them.
    """
    local, count = shape.local_size, max(len(ranks), 1)
    rows, cols = 1, 1
    if sharding in ("row_wise", "table_row_wise"):
        rows = count
    elif sharding in ("column_wise", "table_column_wise"):
        cols = count
    elif sharding == "grid":
        rows, cols = local, count // local
    kind = make_kind(problem.tables[index], shape, sharding, exchange, rows, cols)
    return kind, () if kind.replicated else _block_major(sharding, ranks, local)


def design_of(rated: Rated) -> Design:
    """The design of a rating that has one."""
    assert rated.design is not None
    return rated.design
