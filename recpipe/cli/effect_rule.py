"""What a rule about a setting without effect is, and what rules ask of a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.data.names import feature_names
from recpipe.train.launch import found_workers

LOOPED = ("interleaved", "looped_bfs", "interleaved_zb")
_TWO_STAGES_A_RANK = (*LOOPED, "zbv", "dualpipev")
_TWO_COPIES = ("chimera", "dualpipe", "cyclic")


@dataclass(frozen=True)
class Idle:
    """A setting that some configurations do not use.

    Args:
        key: dotted name; stands for all settings below it, too.
        unused: says of a configuration that has the setting whether it changes nothing there.
        because: why, and so what to change; or a function that says it of the configuration.
    """

    key: str
    unused: Callable[[Any], bool]
    because: str | Callable[[Any], str]


def covers(name: str, key: str) -> bool:
    """Whether `key` is the setting `name` or one below it."""
    return key == name or key.startswith(f"{name}.")


def value_of(cfg: Any, key: str, default: Any = None) -> Any:
    """A setting that a command may not have."""
    value = OmegaConf.select(cfg, key)
    return default if value is None else value


def world_of(cfg: Any) -> int:
    """Number of workers there will be, or are."""
    return int((found_workers(os.environ) or {}).get("WORLD_SIZE", cfg.launch.nproc))


def plan_of(cfg: Any) -> str:
    """``plan`` of a run: empty, ``auto`` or a file."""
    return str(value_of(cfg, "plan", ""))


def kinds_of_tables(cfg: Any) -> set[tuple[str, str]]:
    """(sharding, exchange) of the tables, as far as settings tell; both may be ``auto``."""
    chosen = cfg.tables
    exchange = value_of(cfg, "exchange.kind", "window")
    names = feature_names(cfg.data) if "data" in cfg else None
    named = {*chosen.per_table, *chosen.exchange_per_table}
    tables = named if names is None else {f"t_{name}" for name in names}
    found = {(chosen.per_table.get(t, chosen.sharding), chosen.exchange_per_table.get(t, exchange)) for t in tables}
    return found if names else {*found, (chosen.sharding, exchange)}


def may_use(cfg: Any, exchange: str) -> bool:
    """Whether a table may travel by an exchange; a replicated one does not travel. A plan may choose any."""
    if plan_of(cfg):
        return True
    return any(kind != "replicated" and used == exchange for kind, used in kinds_of_tables(cfg))


def all_replicated(cfg: Any) -> bool:
    """No table is sharded."""
    return not plan_of(cfg) and all(kind == "replicated" for kind, _ in kinds_of_tables(cfg))


def family(cfg: Any) -> str:
    """The family of schedules; empty where a plan decides, and where `recpipe profile` goes through several."""
    return "" if plan_of(cfg) or "output" in cfg else str(cfg.schedule.name)


def one_stage(cfg: Any) -> bool:
    """The tower is not cut."""
    chosen = family(cfg)
    return bool(chosen) and cfg.mesh.stages == 1 and chosen not in (*_TWO_STAGES_A_RANK, "auto")


def one_copy(cfg: Any) -> bool:
    """Every stage of the tower is on one rank."""
    chosen = family(cfg)
    return bool(chosen) and world_of(cfg) == cfg.mesh.stages and chosen not in (*_TWO_COPIES, "auto")


def no_rows(cfg: Any, split: str) -> bool:
    """Settings alone say that a held-out split is empty."""
    data = cfg.data
    if data is None or "name" not in data:
        return False
    if data.name == "synthetic":
        return bool(data[f"num_{split}"] == 0)
    if data.name not in ("criteo", "table") or not isinstance(data.path, str):
        return False
    given = data.valid_path or data.test_path
    by_share = value_of(data, "split", "fraction") == "fraction" and not data[f"{split}_path"]
    # Files in a directory may be held out by their names.
    one_file = not Path(data.path).is_dir() and not set("*?[,") & set(data.path)
    share = data[f"{split}_fraction"]
    return bool(by_share and one_file and (share == 0 or (share == -1 and given)))
