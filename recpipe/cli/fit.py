"""What can be said of a composed configuration before a worker starts or a file is read.

Names that have to be among known ones, sizes that the table kernels take, and settings that were given but change nothing:
a setting without effect is an error, since what its user wanted does not happen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recpipe.bounds import check_bounds
from recpipe.data.config import BAD_ID_POLICIES, NON_FINITE_POLICIES, SHUFFLES
from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.errors import ConfigError, ScheduleError, nearest
from recpipe.model.check import require_embedding_dim
from recpipe.runtime.program import build_program
from recpipe.schedule.settings import CostSettings, ScheduleSettings
from recpipe.train.check import check_choices, check_settings, check_tables, require_free
from recpipe.train.config import CHOICES as TRAIN_CHOICES
from recpipe.train.config import check_trace
from recpipe.train.config_text import as_record
from recpipe.train.launch import found_workers
from recpipe.train.mesh import Mesh

CHOICES: dict[str, tuple[str, ...]] = {
    "data.shuffle": SHUFFLES,
    "data.bad_ids": BAD_ID_POLICIES,
    "data.non_finite": NON_FINITE_POLICIES,
    "tables.sharding": ("auto", *SHARDING_TYPES),
    **TRAIN_CHOICES,
}
_BY_NODE = ("table_row_wise", "table_column_wise", "grid")
_NOT_IN_VERIFY = (
    "early_stopping",
    "epochs",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "drop_last_training_batch",
    "validation_freq_within_epoch",
    "test_batch_size",
    "save_checkpoint",
    "checkpoint",
    "resume",
    "resume_allow_grow",
    "log",
    "trace",
)

_OF_A_LAUNCH = ("launch.max_restarts", "launch.watchdog_seconds", "launch.timeout_seconds")
_PLANNED = {
    "exchange": "the planner chooses; planner.exchange=[window] or [pooled] restricts it",
    "schedule": "the planner chooses; planner.schedules, planner.microbatches and planner.embedding restrict it",
    "mesh.cuts": "the planner cuts the tower",
    "mesh.replicas": "it follows from planner.stages",
    "tables.replicate_below": "the planner chooses; planner.constraints restricts it",
    "tables.local_size": "the topology says how many ranks a node has",
    "run": "recpipe plan runs nothing; planner.out=DIR is where it writes",
    **dict.fromkeys((*_NOT_IN_VERIFY, "lr", *_OF_A_LAUNCH), "recpipe plan runs nothing"),
}
_NOT_HERE = {
    "plan": _PLANNED,
    "verify": {
        **dict.fromkeys(_NOT_IN_VERIFY, "recpipe verify runs training steps only"),
        "launch.max_restarts": "a verification whose ranks fail has failed",
    },
    "profile": {
        "launch.max_restarts": "a measurement that was disturbed is to be taken again",
        "launch.watchdog_seconds": "recpipe profile does not watch its ranks",
    },
}


@dataclass(frozen=True)
class Idle:
    """A setting that some configurations do not use.

    Args:
        key: dotted name; stands for all settings below it, too.
        unused: says of a configuration that has the setting whether it changes nothing there.
        because: why, and so what to change.
    """

    key: str
    unused: Callable[[Any], bool]
    because: str


IDLE = (
    Idle("optimizer.table.eps", lambda cfg: cfg.optimizer.table.name == "sgd", "optimizer/table=sgd has no eps"),
    Idle("optimizer.dense.eps", lambda cfg: cfg.optimizer.dense.name == "sgd", "optimizer/dense=sgd has no eps"),
    Idle("lr.lr_decay_start", lambda cfg: cfg.lr.lr_decay_steps == 0, "lr.lr_decay_steps=0 means no decay"),
    Idle("tables.replicate_below", lambda cfg: cfg.tables.sharding != "auto", "only tables.sharding=auto reads it"),
    Idle(
        "tables.local_size",
        lambda cfg: not {cfg.tables.sharding, *cfg.tables.per_table.values()} & set(_BY_NODE),
        f"no table is {', '.join(_BY_NODE[:-1])} or {_BY_NODE[-1]}",
    ),
    Idle(
        "launch.max_restarts",
        lambda cfg: found_workers(os.environ) is not None or cfg.launch.nproc == 1,
        "only workers that recpipe itself starts, launch.nproc above 1, are started again; torchrun has --max-restarts",
    ),
    Idle("launch.watchdog_seconds", lambda cfg: world_of(cfg) == 1, "one rank waits for nobody"),
    Idle(
        "cost",
        lambda cfg: "planner" in cfg and not cfg.cost.file,
        "costs come from the topology, the tower and the tables; cost=profiled takes what recpipe profile measured",
    ),
    Idle("resume_allow_grow", lambda cfg: not cfg.resume, "only resume=... reads it"),
    Idle("guard.max_skipped_in_a_row", lambda cfg: cfg.guard.non_finite != "skip", "guard.non_finite is not skip"),
    Idle("run.overwrite", lambda cfg: not cfg.run.dir, "without run.dir a run has a directory of its own"),
    Idle("model.dcn_num_layers", lambda cfg: _plain_dlrm(cfg), "model.interaction_type is not dcn"),
    Idle("model.dcn_low_rank_dim", lambda cfg: _plain_dlrm(cfg), "model.interaction_type is not dcn"),
    Idle("model.row_init_std", lambda cfg: cfg.model.row_init != "normal", "only model.row_init=normal reads it"),
    Idle("data.shuffle_rows", lambda cfg: cfg.data.shuffle in ("none", "full"), "data.shuffle is not window or block"),
    Idle(
        "data.mean_ids", lambda cfg: cfg.data.multi_hot_features == 0, "data.multi_hot_features=0: no feature has more"
    ),
    Idle("data.multi_hot_features", lambda cfg: cfg.data.mean_ids == 1, "data.mean_ids=1 makes every feature one-hot"),
    Idle("data.hash_size", lambda cfg: cfg.data.vocabulary != "hash", "only data.vocabulary=hash reads it"),
    Idle("data.frequency_threshold", lambda cfg: _hashed(cfg), "data.vocabulary=hash counts nothing"),
    Idle("data.max_ids", lambda cfg: _hashed(cfg), "data.vocabulary=hash has data.hash_size instead"),
)


def check_fit(cfg: DictConfig, given: Iterable[str], command: str) -> None:
    """Checks a composed configuration.

    Args:
        cfg: of any command; what it does not have is not checked.
        given: dotted names of the settings that were given on the command line; a recipe file may hold more than it needs.
        command: name of the command.

    Raises:
        ConfigError: a name is unknown, a size does not fit, or a given setting has no effect.
    """
    check_choices(cfg, CHOICES)
    check_numbers(cfg)
    for table, kind in (OmegaConf.select(cfg, "tables.per_table") or {}).items():
        if kind not in SHARDING_TYPES:
            raise ConfigError(f"tables.per_table.{table}={kind}: no such type; {nearest(str(kind), SHARDING_TYPES)}")
    dim = OmegaConf.select(cfg, "model.embedding_dim")
    if dim is not None:
        require_embedding_dim(dim)
    check_trace(OmegaConf.select(cfg, "trace.steps") or [])
    # What is resumed has settings of its own: see `recpipe.cli.train`.
    if command in ("train", "verify") and cfg.resume in ("", "auto"):
        check_run(cfg)
    if command == "train" and cfg.run.dir and not cfg.resume and found_workers(os.environ) is None:
        require_free(Path(cfg.run.dir), cfg.run.overwrite)
    for key in given:
        reason = idle_reason(cfg, key, command)
        if reason:
            raise ConfigError(f"{key} has no effect here: {reason}")


def check_run(cfg: Any) -> None:
    """What workers would say of the settings of a run, before there are any. Raises ConfigError."""
    check_numbers(cfg)
    check_schedule(cfg)
    check_settings(cfg)
    check_tables(cfg, world_of(cfg))


def check_numbers(cfg: DictConfig) -> None:
    """Numbers that cannot be meant; see `recpipe.bounds`. Raises ConfigError."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    check_bounds(plain)


def world_of(cfg: Any) -> int:
    """Number of workers there will be, or are."""
    return int((found_workers(os.environ) or {}).get("WORLD_SIZE", cfg.launch.nproc))


def check_schedule(cfg: Any) -> None:
    """Builds the program that the workers will run.

    Raises:
        ConfigError: mesh or schedule do not fit each other or the number of workers.
    """
    world = world_of(cfg)
    mesh = Mesh.create(world, cfg.mesh.stages, cfg.mesh.replicas)
    schedule, cost = as_record(ScheduleSettings, cfg.schedule), as_record(CostSettings, cfg.cost)
    try:
        build_program(schedule, cost, mesh.stages, mesh.replicas)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None


def idle_reason(cfg: DictConfig, key: str, command: str) -> str:
    """Why a setting changes nothing in this configuration; empty if it does something."""
    reason = next((why for name, why in _NOT_HERE.get(command, {}).items() if _covers(name, key)), "")
    if reason:
        return reason
    for rule in IDLE:
        if _covers(rule.key, key) and OmegaConf.select(cfg, rule.key) is not None and rule.unused(cfg):
            return rule.because
    return ""


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _plain_dlrm(cfg: Any) -> bool:
    return bool(cfg.model.name == "dlrm" and cfg.model.interaction_type != "dcn")


def _hashed(cfg: Any) -> bool:
    """The synthetic data set has `max_ids`, too, and no vocabulary."""
    return bool(cfg.data.get("vocabulary") == "hash")
