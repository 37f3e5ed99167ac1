"""Bytes of each rank beside the free memory of its machine, before a table is made. The bytes are the planner's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from recpipe.comm import Groups
from recpipe.embedding.placement import place_tables, placement_options
from recpipe.errors import ConfigError
from recpipe.model import Model
from recpipe.model.partition import Partition
from recpipe.planner.build import chosen_of, ranks_of
from recpipe.planner.designs import Choice, Design, table_shape
from recpipe.planner.memory import RankMemory, rank_memory
from recpipe.planner.problem import Problem
from recpipe.planner.statistics import Demand
from recpipe.planner.table_costs import STATE_ROW, STATE_WIDTH
from recpipe.planner.topology import Nodes, Tier, Topology
from recpipe.planner.tower import count_tower
from recpipe.schedule.cost import Cost
from recpipe.schedule.ir import Program
from recpipe.specs import Schema, TableSpec
from recpipe.train.free_memory import free_of_machine, free_of_process

logger = logging.getLogger(__name__)
_BYTES = {"float32": 4, "float64": 8}
_SURE = ("tables", "table_state", "weights", "weight_state", "weight_gradients")
_LINK = Tier(1e-4, 1e9)


def memory_of(cfg: Any, model: Model, schema: Schema, program: Program, partition: Partition) -> list[RankMemory]:
    """Bytes of every rank, as `recpipe plan` counts them. Nothing is allocated.

    Args:
        cfg: `recpipe.train.config.TrainConfig`.
        model: on the meta device.
        program, partition: that the run executes.
    """
    world, local = program.lanes * program.placement.num_ranks, max(int(cfg.tables.local_size), 1)
    topology = Topology("here", (Nodes(world // local, local, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0),), _LINK, _LINK)
    tables = tuple(
        Demand(spec, max(feature.mean_ids, 1e-9)) for spec, feature in zip(model.tables, schema.features, strict=True)
    )
    size = _BYTES[cfg.dtype]
    names = cfg.optimizer.table.name, cfg.optimizer.dense.name
    batch = cfg.batch_size * program.lanes
    problem = Problem(topology, tables, count_tower(model), batch, *names, element=size, row_element=size)
    microbatches = program.microbatches * program.placement.num_replicas
    choice = Choice(program.placement.num_ranks, program.name, microbatches, "ahead")
    design = Design(choice, program, partition, Cost())
    shape = table_shape(problem, len(design.consumers))
    placed = [
        (one.sharding, one.exchange, ranks_of(one, local))
        for one in place_tables(model.tables, world, placement_options(cfg))
    ]
    return rank_memory(problem, design, [chosen_of(problem, i, shape, *one) for i, one in enumerate(placed)])


def check_memory(
    cfg: Any,
    model: Model,
    schema: Schema,
    program: Program,
    partition: Partition,
    groups: Groups,
    whole_copies: bool = False,
) -> None:
    """Refuses what cannot fit, before anything is allocated; says the bytes of a rank. Collective.

    Args:
        whole_copies: every rank also trains the single-process reference: whole tables, and the tower.

    Raises:
        ConfigError: the ranks of a machine need more than it has left (`launch.check_memory=false` starts them anyway).
    """
    found = memory_of(cfg, model, schema, program, partition)
    beside = _reference_bytes(cfg, model) if whole_copies else 0.0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", groups.world))
    first = groups.rank - int(os.environ.get("LOCAL_RANK", groups.rank))
    here = range(first, min(first + local, groups.world))
    sure = [sum(getattr(found[rank], name) for name in _SURE) + beside for rank in here]
    mine = max(here, key=lambda rank: found[rank].total)
    say(found[mine], beside, len(here))
    problem = _problem(cfg, model, sure)
    said = next((one for one in groups.gather_objects(problem) if one), "")
    if said and cfg.launch.check_memory:
        raise ConfigError(said)
    if said:
        logger.warning("WARNING: %s", said)


def say(one: RankMemory, beside: float, ranks: int) -> None:
    """The fullest rank of this machine in one line."""
    tower = one.weights + one.weight_state + one.weight_gradients + one.activations
    buffers = one.rows + one.buffers + one.input
    parts = [("tables", one.tables), ("their state", one.table_state), ("tower", tower), ("buffers", buffers)]
    parts += [("reference", beside)] if beside else []
    logger.info(
        "memory: %s a rank at most (%s); %s free for %d ranks here",
        size(one.total + beside), ", ".join(f"{name} {size(value)}" for name, value in parts), size(free_of_machine()), ranks,
    )  # fmt: skip


def _problem(cfg: Any, model: Model, sure: Sequence[float]) -> str:
    """Why the ranks of this machine cannot fit; empty if they can."""
    free, each = free_of_machine(), free_of_process()
    if sum(sure) <= free and max(sure) <= each:
        return ""
    table = max(model.tables, key=lambda spec: spec.num_elements)
    limit = f"{size(free)} of memory is free" if sum(sure) > free else f"a process may take {size(each)} (ulimit -v)"
    return (
        f"the tables and the tower cannot fit: the {len(sure)} ranks of this machine need {size(sum(sure))}, the fullest "
        f"{size(max(sure))}, and {limit}. The largest table is {table.name}: {table.num_rows:,} rows of {table.dim} floats, "
        f"largest id {table.num_rows - 1:,}, {size(_table_bytes(cfg, table))} with its optimizer state. {_help(cfg, table)}; "
        f"launch.check_memory=false starts anyway"
    )


def _help(cfg: Any, table: TableSpec) -> str:
    """Changes that would need less."""
    row = "data.hash_size or data.max_ids cap the ids (ids of your own should be numbered from 0 without gaps)"
    parts = [
        row,
        "a smaller model.embedding_dim",
        f"tables.per_table.{table.name}=row_wise over ranks of more machines",
    ]
    if cfg.optimizer.table.name in ("adagrad", "adam"):
        parts.append("optimizer/table=rowwise_adagrad")
    if cfg.dtype == "float64":
        parts.append("dtype=float32")
    return "These need less: " + ", ".join(parts)


def _table_bytes(cfg: Any, table: TableSpec) -> float:
    rule = cfg.optimizer.table.name
    columns = table.dim * (1 + STATE_WIDTH[rule]) + STATE_ROW.get(rule, 0)
    return float(table.num_rows * columns * _BYTES[cfg.dtype])


def _reference_bytes(cfg: Any, model: Model) -> float:
    """Whole tables with state, and a gradient of the same size."""
    return sum(_table_bytes(cfg, table) + table.num_elements * _BYTES[cfg.dtype] for table in model.tables)


def size(value: float) -> str:
    """Bytes for people."""
    for unit, mark in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.4g} {mark}"
    return f"{value:.0f} bytes"
