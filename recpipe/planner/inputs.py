"""From a configuration to a problem: tables and statistics from a data set or stated, the tower counted or measured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recpipe.data import open_dataset, prepare_dataset
from recpipe.embedding.placement import place_tables, placement_options
from recpipe.errors import ConfigError
from recpipe.model import Model, build_model
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.profiled import profiled
from recpipe.planner.settings import to_allowed, to_scope
from recpipe.planner.statistics import Demand, measured_demands, stated_demands
from recpipe.planner.topology import Topology, to_topology
from recpipe.planner.tower import Tower, count_tower, measure_tower
from recpipe.schedule.profile import load_profile
from recpipe.specs import Feature, Schema

logger = logging.getLogger(__name__)
_BYTES = {"float32": 4, "float64": 8}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_problem(cfg: Any) -> Problem:
    """The problem of a composed configuration of `recpipe plan`. No process is started, no table is made.

    Raises:
        ConfigError, DataError: settings or files that do not fit.
    """
    return problem_of(cfg, to_topology(cfg.topology), cfg.planner, cfg.workload)


def problem_of(cfg: Any, topology: Topology, planner: Any, workload: Any) -> Problem:
    """The problem of a training configuration on given machines.

    Args:
        cfg: a `recpipe.train.config.TrainConfig`.
        planner: `recpipe.planner.settings.PlannerSettings`.
        workload: `recpipe.planner.statistics.WorkloadSettings`.

    Raises:
        ConfigError, DataError: settings or files that do not fit.
    """
    topology = _limited(topology, planner.memory_gb)
    for stages in planner.stages:
        if stages > 0 and topology.world % stages:
            raise ConfigError(
                f"planner.stages={list(planner.stages)}: {stages} does not divide the {topology.world} ranks"
            )
    schema, statistics = _stated_schema(workload), None
    if schema is None:
        prepare_dataset(cfg.data, logger.info)
        dataset = open_dataset(cfg.data, cfg.seed)
        schema, statistics = dataset.schema, dataset.statistics()
    model = build_model(cfg.model, schema, dtype=_DTYPES[cfg.dtype], device="meta")
    tables = _demands(cfg, workload, model, schema, statistics)
    names = [demand.spec.name for demand in tables]
    problem = Problem(
        topology=topology,
        tables=tables,
        tower=_tower(cfg, planner.measure, model, schema, topology),
        global_batch=_global_batch(cfg, planner.global_batch, topology),
        table_optimizer=cfg.optimizer.table.name,
        dense_optimizer=cfg.optimizer.dense.name,
        element=_BYTES[cfg.dtype],
        row_element=_BYTES[cfg.dtype],
        allowed=to_allowed(names, planner, cfg.tables, topology.world),
        scope=_scope(planner, model, topology),
        model=cfg.model.name,
        data=cfg.data.name if statistics is not None else "stated",
    )
    if not cfg.cost.file:
        return problem
    layouts = place_tables(model.tables, topology.world, placement_options(cfg))
    return profiled(problem, load_profile(Path(cfg.cost.file)), layouts)


def _scope(planner: Any, model: Model, topology: Topology) -> Scope:
    """What the search may use; where a block couples rows, only what computes a step in one piece.

    Raises:
        ConfigError: the settings leave nothing of that.
    """
    scope, world = to_scope(planner), topology.world
    if not model.couplings:
        return scope
    if (scope.stages and world not in scope.stages) or 1 not in scope.microbatches:
        block = model.couplings[0]
        raise ConfigError(
            f"block {block.block}: {block.why}, so a step has to be computed in one piece: planner.stages has to allow {world} "
            f"(all ranks in one pipeline) and planner.microbatches has to allow 1"
        )
    return replace(scope, stages=(world,), microbatches=(1,))


def _limited(topology: Topology, memory_gb: float | None) -> Topology:
    """With the user's own limit in place of the machine's memory and reserve."""
    if memory_gb is None:
        return topology
    if memory_gb <= 0:
        raise ConfigError(f"planner.memory_gb={memory_gb}: must be above 0")
    limit, largest = memory_gb * 1e9, max(group.memory for group in topology.nodes)
    if limit > largest:
        raise ConfigError(
            f"planner.memory_gb={memory_gb:g}: a rank of topology {topology.name} has {largest / 1e9:g} GB; the limit may "
            f"not be above that (a file of your own through --config-dir describes other machines)"
        )
    nodes = tuple(replace(group, memory=min(group.memory, limit)) for group in topology.nodes)
    if any(group.memory < limit for group in topology.nodes):
        logger.info("planner.memory_gb=%g: ranks with less memory than that keep their own", memory_gb)
    return replace(topology, nodes=nodes, reserved=0.0)


def _global_batch(cfg: Any, asked: int | None, topology: Topology) -> int:
    """Rows a step, the same for every mesh that is tried, so that plans are for the same training run."""
    if asked is not None:
        if asked < topology.world:
            raise ConfigError(f"planner.global_batch={asked}: fewer rows than {topology.world} ranks")
        return asked
    return int(cfg.batch_size) * (topology.world // cfg.mesh.stages)


def _stated_schema(workload: Any) -> Schema | None:
    """Columns of a stated workload; None where the data set says."""
    rows = list(workload.num_embeddings_per_feature)
    if not rows:
        return None
    for key, least, said in (
        ("num_embeddings_per_feature", 1, "at least 1"),
        ("multi_hot_sizes", 1e-9, "above 0"),
        ("skew", 0, "at least 0"),
    ):
        if any(value < least for value in getattr(workload, key)):
            raise ConfigError(f"workload.{key}={list(getattr(workload, key))}: each must be {said}")
    sizes = _spread("multi_hot_sizes", workload.multi_hot_sizes or [1.0], len(rows))
    features = tuple(Feature(f"cat_{i}", n, float(size)) for i, (n, size) in enumerate(zip(rows, sizes, strict=True)))
    return Schema(workload.num_dense, features)


def _spread(name: str, values: Sequence[float], count: int) -> list[float]:
    """One value for each table, or one for all."""
    if len(values) not in (1, count):
        raise ConfigError(f"workload.{name} has {len(values)} entries for {count} tables; give one, or one for each")
    return list(values) * count if len(values) == 1 else list(values)


def _demands(cfg: Any, workload: Any, model: Model, schema: Schema, statistics: Any) -> tuple[Demand, ...]:
    if statistics is None:
        skew = _spread("skew", workload.skew, len(schema.features))
        means = [feature.mean_ids for feature in schema.features]
        return stated_demands(model.tables, means, skew, workload.by_frequency)
    hashed = getattr(cfg.data, "vocabulary", "frequency") == "hash"
    return measured_demands(model.tables, statistics, by_frequency=not hashed)


def _tower(cfg: Any, measure: str, model: Model, schema: Schema, topology: Topology) -> Tower:
    tower = count_tower(model)
    wanted = measure == "always" or (measure == "auto" and topology.measured and not cfg.cost.file)
    if not wanted:
        return tower
    before = torch.get_num_threads()
    torch.set_num_threads(cfg.launch.threads)
    try:
        return measure_tower(build_model(cfg.model, schema, dtype=_DTYPES[cfg.dtype]), tower)
    finally:
        torch.set_num_threads(before)
