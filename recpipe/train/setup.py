"""From a configuration to everything a rank needs: process groups, mesh, data, model, tables, optimizers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recpipe.comm import Channels, GradientReducer, Groups, Lane, ShortLane, Traffic
from recpipe.comm.connecting import join
from recpipe.data import Dataset, open_dataset, prepare_dataset
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.placement import place_tables, placement_options
from recpipe.embedding.tables import ShardedTables
from recpipe.errors import ConfigError
from recpipe.model import Model, build_model
from recpipe.model.partition import Partition, partition_by_cost, partition_by_name
from recpipe.runtime.executor import Executor
from recpipe.runtime.order import StepOrder, step_order
from recpipe.runtime.place import Place
from recpipe.runtime.program import build_program
from recpipe.runtime.stage import Stage
from recpipe.schedule.ir import Op, Program
from recpipe.schedule.profile import load_profile
from recpipe.schedule.settings import CostSettings, ScheduleSettings
from recpipe.train.check import check_settings
from recpipe.train.config_text import as_record
from recpipe.train.generators import seed_generators
from recpipe.train.guard import StepGuard
from recpipe.train.lr import LrPolicy
from recpipe.train.memory import check_memory
from recpipe.train.mesh import Mesh
from recpipe.train.rendezvous import meet
from recpipe.train.trainer import DenseUpdates, Scorer, Trainer
from recpipe.train.whole_step import check_couplings

logger = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_SHORT = {None: None, "bfloat16": torch.bfloat16}
_DENSE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class Job:
    """A rank's parts of a run."""

    cfg: Any
    groups: Groups
    mesh: Mesh
    place: Place
    program: Program
    partition: Partition
    traffic: Traffic
    dataset: Dataset
    model: Model
    tables: ShardedTables
    trainer: Trainer


def init_processes(launch: Any) -> Groups:
    """Joins the process group that the environment describes, or makes one of a single rank; sets the threads.

    Args:
        launch: `recpipe.train.config.LaunchConfig`.
    """
    torch.set_num_threads(launch.threads)
    timeout = timedelta(seconds=launch.timeout_seconds)
    store, rank, world = meet(timeout)
    join(store, rank, world, timeout)
    return Groups.create()


def open_data(cfg: Any, groups: Groups) -> Dataset:
    """Prepares the data on rank 0, then opens it on every rank."""
    if groups.rank == 0:
        prepare_dataset(cfg.data, logger.info)
    groups.barrier()
    return open_dataset(cfg.data, cfg.seed)


def build_job(
    cfg: Any, groups: Groups, opening: Callable[[Any, Groups], Dataset] = open_data, with_reference: bool = False
) -> Job:
    """Everything of a training run, at step 0.

    Args:
        cfg: `recpipe.train.config.TrainConfig`, composed.
        opening: gives the data set.
        with_reference: every rank trains the single-process reference, too, which takes memory.

    Raises:
        ConfigError, PlanError, DataError: settings that do not fit, said before any table is made.
    """
    check_settings(cfg)
    seed_generators(cfg.seed, groups.rank)
    mesh = Mesh.create(groups.world, cfg.mesh.stages, cfg.mesh.replicas)
    schedule, cost = as_record(ScheduleSettings, cfg.schedule), as_record(CostSettings, cfg.cost)
    program = build_program(schedule, cost, mesh.stages, mesh.replicas)
    place = Place(program.placement, mesh.replicas, groups.rank)
    order = step_order(program, place.local)
    dataset = opening(cfg, groups)
    dtype = _DTYPES[cfg.dtype]
    model = build_model(cfg.model, dataset.schema, seed=cfg.seed, dtype=dtype, device="meta")
    check_couplings(model.couplings, cfg, program, dataset.num_rows("train"))
    measured = load_profile(Path(cost.file)).blocks if cost.file else []
    partition = cut_tower(cfg.mesh.cuts, model, program.placement.num_stages, measured)
    check_memory(cfg, model, dataset.schema, program, partition, groups, with_reference)
    stages = make_stages(model, partition, place, cfg.seed, _SHORT[cfg.compute_dtype])
    traffic = Traffic()
    tables = build_tables(cfg, model, groups, traffic)
    channels = Channels.create(groups.rank, traffic) if mesh.stages > 1 else None
    updates = dense_updates(cfg, order, place, stages, groups, traffic)
    between = _SHORT[cfg.compute_dtype]
    forward = Executor(order.forward_only(), place, tables, stages, channels, None, cfg.seed, between)
    executor = Executor(order, place, tables, stages, channels, updates, cfg.seed, between)
    trainer = Trainer(model, tables, forward, executor, updates)
    return Job(cfg, groups, mesh, place, program, partition, traffic, dataset, model, tables, trainer)


def build_scorer(cfg: Any, dataset: Dataset, groups: Groups) -> Scorer:
    """A model to score with, the whole tower on every rank; weights are still to be loaded.

    Args:
        cfg: `recpipe.train.config.TrainConfig` of the run that trained it.
    """
    program = build_program(ScheduleSettings(microbatches=1, embedding="ahead"), CostSettings(), 1, groups.world)
    place = Place(program.placement, groups.world, groups.rank)
    model = build_model(cfg.model, dataset.schema, seed=cfg.seed, dtype=_DTYPES[cfg.dtype], device="meta")
    partition = cut_tower([], model, 1)
    check_memory(cfg, model, dataset.schema, program, partition, groups)
    stages = make_stages(model, partition, place, cfg.seed)
    tables = build_tables(cfg, model, groups, Traffic())
    order = step_order(program, place.local).forward_only()
    return Scorer(model, tables, Executor(order, place, tables, stages, None, None, cfg.seed))


def cut_tower(cuts: Sequence[str], model: Model, num_stages: int, measured: Sequence[float] = ()) -> Partition:
    """Blocks of each stage: before the named blocks, or by cost, with the least traffic among equals.

    Args:
        cuts: names of the blocks that stages begin with, but the first.
        measured: times of the blocks; where there are none, their counted operations are the cost.

    Raises:
        ConfigError: the cuts do not fit.
    """
    if measured and len(measured) != len(model.blocks):
        raise ConfigError(f"cost.file: a profile of {len(measured)} blocks, but {model.name} has {len(model.blocks)} here")
    if not cuts:
        costs = measured or model.row_flops
        return partition_by_cost(costs, num_stages, [spec.row_numel for spec in model.boundaries[:-1]])
    if len(cuts) != num_stages - 1:
        raise ConfigError(f"mesh.cuts names {len(cuts)} cuts, but the schedule has {num_stages} stages: name {num_stages - 1}")
    return partition_by_name(list(model.blocks), cuts)  # type: ignore[arg-type]


def make_stages(
    model: Model, partition: Partition, place: Place, seed: int, dtype: torch.dtype | None = None
) -> dict[int, Stage]:
    """The stages of a rank, computing in `dtype`; only their blocks get memory."""
    model.materialise((block for stage in place.stages for block in partition[stage]), seed)
    return {stage: Stage(model, partition[stage], dtype) for stage in place.stages}


def dense_updates(
    cfg: Any, order: StepOrder, place: Place, stages: dict[int, Stage], groups: Groups, traffic: Traffic
) -> DenseUpdates:
    """Reductions over the copies of each stage, and an optimizer a stage; collective."""
    lanes = _dense_lanes(cfg, place, groups, traffic)
    reducers = {index: GradientReducer(stage.weights, lanes[index]) for index, stage in stages.items()}
    backwards = {s: sum(a.stage == s and a.op in (Op.B, Op.W) for a in order.later) for s in stages}
    policy = LrPolicy(cfg.lr.lr_warmup_steps, cfg.lr.lr_decay_start, cfg.lr.lr_decay_steps)
    optimizers = {s: dense_optimizer(cfg.optimizer.dense, stage.weights) for s, stage in stages.items() if stage.weights}
    guard = StepGuard(
        [stage for stage in stages if place.holders(stage)[0] == groups.rank],
        groups,
        cfg.guard.non_finite == "skip",
        cfg.guard.max_skipped_in_a_row,
        cfg.optimizer.dense.clip_norm,
    )
    return DenseUpdates(reducers, optimizers, backwards, policy, cfg.optimizer.table.learning_rate, guard)


def build_tables(cfg: Any, model: Model, groups: Groups, traffic: Traffic) -> ShardedTables:
    """The sharded tables of a model, each placed as the configuration says."""
    layouts = place_tables(model.tables, groups.world, placement_options(cfg))
    dtype = _DTYPES[cfg.dtype]
    lanes = Lanes(
        ids=_lane(groups, groups.ids, traffic, "ids"),
        rows=_lane(groups, groups.rows, traffic, "rows"),
        gradients=_lane(groups, groups.gradients, traffic, "row_gradients"),
    )

    def init_rows(table: int, start: int, stop: int) -> torch.Tensor:
        return model.init_rows(model.tables[table], start, stop, cfg.seed, dtype)

    rule, wire = row_optimizer(cfg.optimizer.table), _SHORT[cfg.exchange.wire_dtype]
    return ShardedTables(layouts, rule, init_rows, lanes, dtype, groups.control, wire)


def row_optimizer(cfg: Any) -> RowOptimizer:
    """The rule of table rows."""
    return RowOptimizer(cfg.name, cfg.eps, cfg.l2)


def dense_optimizer(cfg: Any, weights: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The tower's optimizer, in torch's fused form."""
    settings = {"lr": cfg.learning_rate, "weight_decay": cfg.weight_decay, "fused": True}
    if cfg.name != "sgd":
        settings["eps"] = cfg.eps
    return _DENSE[cfg.name](list(weights), **settings)


def _dense_lanes(cfg: Any, place: Place, groups: Groups, traffic: Traffic) -> list[Lane]:
    """By stage, a lane between its copies; collective. Of a stage that this rank has no part in, one that nobody uses."""
    holders = [place.holders(stage) for stage in range(place.placement.num_stages)]
    copies, short = groups.of_copies(holders), _SHORT[cfg.exchange.dense_wire_dtype]
    if short is None:
        pairs = zip(copies, holders, strict=True)
        return [Lane(group, groups.rank, len(ranks), traffic, "dense") for group, ranks in pairs]
    sums = groups.of_copies(holders, of_its_own=True)
    return [
        ShortLane(group, second, ranks.index(groups.rank) if group else 0, len(ranks), traffic, "dense", short)
        for group, second, ranks in zip(copies, sums, holders, strict=True)
    ]


def _lane(groups: Groups, group: dist.ProcessGroup | None, traffic: Traffic, purpose: str) -> Lane:
    return Lane(group, groups.rank, groups.world, traffic, purpose)
