"""What can be said of a composed configuration before a worker starts or a file is read.

Names that have to be among known ones, sizes that the table kernels take, and settings that were given but change nothing:
a setting without effect is an error, since what its user wanted does not happen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recpipe.bounds import check_bounds
from recpipe.cli.effect_rule import world_of
from recpipe.cli.effects import check_effects
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
from recpipe.train.whole_step import check_settings_of

CHOICES: dict[str, tuple[str, ...]] = {
    "data.shuffle": SHUFFLES,
    "data.bad_ids": BAD_ID_POLICIES,
    "data.non_finite": NON_FINITE_POLICIES,
    "tables.sharding": ("auto", *SHARDING_TYPES),
    **TRAIN_CHOICES,
}


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
    if command in ("train", "verify") and cfg.resume in ("", "auto"):
        check_run(cfg)
    if command in ("train", "verify") and cfg.run.dir and not cfg.resume and found_workers(os.environ) is None:
        require_free(Path(cfg.run.dir), cfg.run.overwrite)
    # What is resumed has settings of its own: see `recpipe.cli.train`.
    if command != "train" or cfg.resume in ("", "auto"):
        check_effects(cfg, list(given), command)


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


def check_schedule(cfg: Any) -> None:
    """Builds the program that the workers will run.

    Raises:
        ConfigError: mesh or schedule do not fit each other or the number of workers.
    """
    world = world_of(cfg)
    mesh = Mesh.create(world, cfg.mesh.stages, cfg.mesh.replicas)
    schedule, cost = as_record(ScheduleSettings, cfg.schedule), as_record(CostSettings, cfg.cost)
    try:
        program = build_program(schedule, cost, mesh.stages, mesh.replicas)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    if not cfg.plan:
        check_settings_of(cfg, program)
