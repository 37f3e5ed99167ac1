"""From a configuration to everything a rank needs: process groups, mesh, data, model, tables, optimizers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist

from recpipe.comm import GradientReducer, Groups, Lane, Traffic
from recpipe.data import Dataset, open_dataset, prepare_dataset
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.placement import PlacementOptions, place_tables
from recpipe.embedding.tables import ShardedTables
from recpipe.errors import ConfigError, nearest
from recpipe.model import Model, build_model
from recpipe.train.config import CHOICES
from recpipe.train.lr import LrPolicy
from recpipe.train.mesh import Mesh
from recpipe.train.trainer import Trainer

logger = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
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
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timeout)
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    return Groups.create()


def open_data(cfg: Any, groups: Groups) -> Dataset:
    """Prepares the data on rank 0, then opens it on every rank."""
    if groups.rank == 0:
        prepare_dataset(cfg.data, logger.info)
    groups.barrier()
    return open_dataset(cfg.data, cfg.seed)


def build_job(cfg: Any, groups: Groups) -> Job:
    """Everything of a training run, at step 0.

    Args:
        cfg: `recpipe.train.config.TrainConfig`, composed.

    Raises:
        ConfigError, PlanError, DataError: settings that do not fit, said before any table is made.
    """
    check_settings(cfg)
    mesh = Mesh.create(groups.rank, groups.world, cfg.mesh.stages, cfg.mesh.replicas)
    if mesh.stages > 1:
        raise ConfigError("mesh.stages > 1: pipelines are not in this version's trainer; use mesh.stages=1")
    dataset = open_data(cfg, groups)
    dtype = _DTYPES[cfg.dtype]
    model = build_model(cfg.model, dataset.schema, seed=cfg.seed, dtype=dtype)
    traffic = Traffic()
    tables = build_tables(cfg, model, groups, traffic)
    policy = LrPolicy(cfg.lr.lr_warmup_steps, cfg.lr.lr_decay_start, cfg.lr.lr_decay_steps)
    trainer = Trainer(
        model,
        tables,
        GradientReducer(model.parameters(), _lane(groups, groups.dense, traffic, "dense")),
        dense_optimizer(cfg.optimizer.dense, model),
        cfg.optimizer.table.learning_rate,
        policy,
        cfg.schedule.microbatches,
        cfg.seed,
    )
    return Job(cfg, groups, mesh, traffic, dataset, model, tables, trainer)


def build_tables(cfg: Any, model: Model, groups: Groups, traffic: Traffic) -> ShardedTables:
    """The sharded tables of a model, each placed as the configuration says."""
    chosen = cfg.tables
    options = PlacementOptions(
        sharding=chosen.sharding,
        exchange=cfg.exchange.kind,
        replicate_below=chosen.replicate_below,
        local_size=chosen.local_size,
        per_table=dict(chosen.per_table),
        exchange_per_table=dict(chosen.exchange_per_table),
        pins={name: list(ranks) for name, ranks in chosen.pins.items()},
    )
    layouts = place_tables(model.tables, groups.world, options)
    dtype = _DTYPES[cfg.dtype]
    lanes = Lanes(
        ids=_lane(groups, groups.ids, traffic, "ids"),
        rows=_lane(groups, groups.rows, traffic, "rows"),
        gradients=_lane(groups, groups.gradients, traffic, "row_gradients"),
    )

    def init_rows(table: int, start: int, stop: int) -> torch.Tensor:
        return model.init_rows(model.tables[table], start, stop, cfg.seed, dtype)

    return ShardedTables(layouts, row_optimizer(cfg.optimizer.table), init_rows, lanes, dtype, groups.control)


def row_optimizer(cfg: Any) -> RowOptimizer:
    """The rule of table rows."""
    return RowOptimizer(cfg.name, cfg.eps, cfg.l2)


def dense_optimizer(cfg: Any, model: Model) -> torch.optim.Optimizer:
    """The tower's optimizer, in torch's fused form."""
    settings = {"lr": cfg.learning_rate, "weight_decay": cfg.weight_decay, "fused": True}
    if cfg.name != "sgd":
        settings["eps"] = cfg.eps
    return _DENSE[cfg.name](model.parameters(), **settings)


def check_settings(cfg: Any) -> None:
    """What can be said before anything is opened."""
    for key, known in CHOICES.items():
        value = attrgetter(key)(cfg)
        if value not in known:
            raise ConfigError(f"{key}={value}: unknown; {nearest(str(value), known)}")
    for name, rule in (("table", cfg.optimizer.table), ("dense", cfg.optimizer.dense)):
        if rule.learning_rate < 0:
            raise ConfigError(f"optimizer.{name}.learning_rate={rule.learning_rate}: must not be negative")
    for name in ("batch_size", "epochs"):
        if getattr(cfg, name) < 1:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must be at least 1")
    if cfg.schedule.microbatches < 1:
        raise ConfigError(f"schedule.microbatches={cfg.schedule.microbatches}: must be at least 1")


def _lane(groups: Groups, group: dist.ProcessGroup | None, traffic: Traffic, purpose: str) -> Lane:
    return Lane(group, groups.rank, groups.world, traffic, purpose)
