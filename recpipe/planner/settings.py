"""The settings of `recpipe plan`, group `planner`."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.errors import ConfigError, nearest
from recpipe.planner.problem import SCHEDULES, Scope
from recpipe.planner.table_costs import Allowed

EXCHANGES = ("window", "pooled")
MODES = ("ahead", "spread", "route", "step")


@dataclass
class ConstraintSettings:
    """What a table may use; empty lists allow everything.

    Args:
        sharding: types.
        exchange: window, pooled.
        ranks: the ranks that hold it, in order.
        exclude: types that must not be used.
    """

    sharding: list[str] = field(default_factory=list)
    exchange: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)


@dataclass
class PlannerSettings:
    """Group `planner`.

    Args:
        stages: ranks of one pipeline to try; empty: all that fit the machines.
        microbatches, schedules, embedding, chunks: to try; see the group `schedule`.
        sharding, exchange: of any table.
        constraints: by table name or pattern, as ``{t_cat_0: {sharding: [row_wise]}, 't_cat_1*': {exclude: [replicated]}}``.
        memory_gb: bytes of a rank that may be used, in 1e9, at most the topology's; null: the topology's less its reserve.
        global_batch: rows a step over all replicas; null: batch_size times the ranks.
        seconds: time box of the search.
        effort: table assignments looked at for each schedule that is polished.
        steps: optimizer steps that are simulated.
        torchrec: rate the plan of TorchRec's own planner, too: auto (where it is quick), always, never.
        measure: time the tower here instead of counting its operations: auto (for a measured topology), always, never.
        sensitivity: also plan one more node, twice the batch and 16-bit rows.
        plan: a plan file to report on instead of searching.
        compare: a plan file to list the differences from.
        measured: ``summary.json`` of a run with this plan: its figures are shown beside the predicted ones.
        verbose: every rank and table in the terminal report.
        out: directory of the report; empty: one named by the time.
    """

    stages: list[int] = field(default_factory=list)
    microbatches: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    schedules: list[str] = field(default_factory=lambda: list(SCHEDULES))
    embedding: list[str] = field(default_factory=lambda: list(MODES))
    chunks: list[int] = field(default_factory=lambda: [2])
    sharding: list[str] = field(default_factory=lambda: list(SHARDING_TYPES))
    exchange: list[str] = field(default_factory=lambda: list(EXCHANGES))
    constraints: dict[str, ConstraintSettings] = field(default_factory=dict)
    memory_gb: float | None = None
    global_batch: int | None = None
    seconds: float = 30.0
    effort: int = 2000
    steps: int = 3
    torchrec: str = "auto"
    measure: str = "auto"
    sensitivity: bool = True
    plan: str = ""
    compare: str = ""
    measured: str = ""
    verbose: bool = False
    out: str = ""


def to_scope(settings: Any) -> Scope:
    """What the search may use. Raises ConfigError for unknown names."""
    for key, known in (
        ("schedules", SCHEDULES),
        ("embedding", MODES),
        ("sharding", SHARDING_TYPES),
        ("exchange", EXCHANGES),
    ):
        _known(f"planner.{key}", getattr(settings, key), known)
    for key in ("torchrec", "measure"):
        _known(f"planner.{key}", [getattr(settings, key)], ("auto", "always", "never"))
    for key in ("microbatches", "schedules", "embedding"):
        if not getattr(settings, key):
            raise ConfigError(f"planner.{key}=[]: leaves nothing to try")
    for key in ("stages", "microbatches", "chunks"):
        if any(value < 1 for value in getattr(settings, key)):
            raise ConfigError(f"planner.{key}={list(getattr(settings, key))}: each must be at least 1")
    if settings.steps < 2 or settings.effort < 1 or settings.seconds <= 0:
        raise ConfigError("planner.steps must be at least 2, planner.effort at least 1, planner.seconds above 0")
    return Scope(
        tuple(settings.stages),
        tuple(settings.microbatches),
        tuple(settings.schedules),
        tuple(settings.embedding),
        tuple(settings.chunks),
        settings.seconds,
        settings.effort,
        settings.steps,
    )


def to_allowed(names: Sequence[str], settings: Any, tables: Any, world: int) -> dict[str, Allowed]:
    """What each table may use: `planner.*` for all, its constraint, and what the run pins in `tables.*`.

    Args:
        names: of all tables.
        settings: `PlannerSettings`.
        tables: `recpipe.train.config.TablesConfig`.

    Raises:
        ConfigError: a name fits no table, or nothing is left for one.
    """
    for pattern in settings.constraints:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"planner.constraints names '{pattern}', which fits no table; {nearest(pattern, names)}")
    for key in ("per_table", "exchange_per_table", "pins"):
        for name in getattr(tables, key):
            if name not in names:
                raise ConfigError(f"tables.{key} names '{name}', which is no table; {nearest(name, names)}")
    return {name: _allowed(name, settings, tables, world) for name in names}


def _allowed(name: str, settings: Any, tables: Any, world: int) -> Allowed:
    rules = [rule for pattern, rule in settings.constraints.items() if fnmatch.fnmatchcase(name, pattern)]
    types = list(settings.sharding) if tables.sharding == "auto" else [tables.sharding]
    exchanges, ranks = list(settings.exchange), list(tables.pins.get(name, ()))
    for rule in rules:
        _known(f"planner.constraints.{name}", [*rule.sharding, *rule.exclude], SHARDING_TYPES)
        _known(f"planner.constraints.{name}.exchange", rule.exchange, EXCHANGES)
        types = [one for one in types if (not rule.sharding or one in rule.sharding) and one not in rule.exclude]
        exchanges = [one for one in exchanges if not rule.exchange or one in rule.exchange]
        ranks = list(rule.ranks) or ranks
    if name in tables.per_table:
        types = [tables.per_table[name]]
    if name in tables.exchange_per_table:
        exchanges = [tables.exchange_per_table[name]]
    if ranks:
        types = [one for one in types if one != "replicated" and (len(ranks) == 1) == (one == "table_wise")]
    if not types or not exchanges:
        raise ConfigError(f"table {name}: planner.constraints and tables.* leave no sharding type or exchange for it")
    if any(not 0 <= rank < world for rank in ranks):
        raise ConfigError(f"table {name}: pinned to ranks {ranks}, but there are {world} ranks")
    if len(set(ranks)) < len(ranks):
        raise ConfigError(f"table {name}: pinned to ranks {ranks}, of which one stands twice; name each once")
    return Allowed(tuple(types), tuple(exchanges), tuple(ranks))


def _known(key: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            why = "executed as plain data parallel for now, so no plan is made with it" if value == "cyclic" else "unknown"
            raise ConfigError(f"{key}: '{value}' is {why}; {nearest(str(value), known)}")
