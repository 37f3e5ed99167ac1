"""TorchRec's own plan as one candidate of the search: its tables, rated by our model under every schedule."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from recpipe.embedding.torchrec_planner import Machines, TorchRecTable, torchrec_plan
from recpipe.errors import PlanError
from recpipe.planner.assign import Table
from recpipe.planner.build import chosen_of
from recpipe.planner.loads import Chosen
from recpipe.planner.problem import Problem
from recpipe.planner.table_costs import Shape

logger = logging.getLogger(__name__)
QUICK = 1024
"""Tables times ranks up to which TorchRec's planner takes a second or two."""


def torchrec_seed(problem: Problem, shape: Shape, tables: Sequence[Table]) -> tuple[Chosen, ...] | None:
    """TorchRec's tables with the pooled exchange, as it would run them; None where it finds no plan.

    The plan does not depend on our tower; consumers that read less than all ranks do are told to it by the batch size.
    """
    group, top = problem.topology.nodes[-1], problem.topology
    machines = Machines(
        top.world,
        top.local_size,
        top.host == "async",
        min(one.memory for one in top.nodes),
        group.bandwidth,
        top.near.bandwidth,
        top.far.bandwidth,
    )
    specs = [demand.spec for demand in problem.tables]
    means = [demand.mean_ids for demand in problem.tables]
    try:
        plan = torchrec_plan(specs, means, max(1, problem.global_batch // top.world), machines, problem.table_optimizer)
    except PlanError as error:
        logger.info("%s", error)
        return None
    return tuple(_chosen(problem, index, shape, plan[spec.name]) for index, spec in enumerate(specs))


def _chosen(problem: Problem, index: int, shape: Shape, table: TorchRecTable) -> Chosen:
    exchange = "window" if table.sharding == "replicated" else "pooled"
    if table.sharding == "row_wise":
        return chosen_of(problem, index, shape, "row_wise", exchange, range(shape.world))
    return chosen_of(problem, index, shape, table.sharding, exchange, table.ranks)
