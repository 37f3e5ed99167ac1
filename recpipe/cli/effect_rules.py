"""When the settings of a run have no effect: rules for all but data and model. See `recpipe.cli.effects`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recpipe.cli.effect_rule import (
    LOOPED,
    Idle,
    all_replicated,
    family,
    kinds_of_tables,
    may_use,
    no_rows,
    one_copy,
    one_stage,
    plan_of,
    value_of,
    world_of,
)
from recpipe.train.launch import found_workers

_NO_VALID = "the data have no validation rows: give data.valid_path, data.valid_fraction or data.num_valid"
_AT_NODES = ("table_row_wise", "table_column_wise", "grid")
_AUTO_ONLY = ("schedule.copies", "schedule.try_microbatches", "schedule.try_chunks")
_OF_EXCHANGE = ("cost.route", "cost.lookup", "cost.update", "cost.row_bytes", "cost.first_use")
_SEARCHED = ("stages", "microbatches", "schedules", "embedding", "chunks", "sharding", "exchange", "constraints", "seconds",
             "effort")  # fmt: skip
_PLAN_CHOOSES = ("exchange.kind", "mesh.stages", "mesh.replicas", "mesh.cuts")
_PLAN_SCHEDULES = tuple(
    f"schedule.{name}"
    for name in ("name", "microbatches", "embedding", "chunks", "pipelines", "beyond", "memory", "copies",
                 "try_microbatches", "try_chunks")
)  # fmt: skip


def _decided(cfg: Any) -> str:
    return f"plan={plan_of(cfg)} decides it; leave one of them out"


def _is_idle_cost(cfg: Any) -> bool:
    """In a run costs guide two families, a predicted timeline and, from a profile, the cut of the tower and a plan."""
    if "plan" not in cfg or "planner" in cfg or family(cfg) in ("", "auto", "greedy"):
        return False
    return not cfg.trace.steps and (one_stage(cfg) or not cfg.cost.file)


def _is_paper(cfg: Any) -> bool:
    """`recpipe simulate`, which has no ranks."""
    return "launch" not in cfg


def _keeps_nothing(cfg: Any) -> bool:
    kept = cfg.checkpoint
    return not (kept.every_steps or kept.every_minutes or kept.every_epoch)


def _no_planner_rows(cfg: Any) -> bool:
    return "workload" in cfg and not cfg.workload.num_embeddings_per_feature


def _other_metric(cfg: Any) -> bool:
    best = cfg.checkpoint.keep_best
    return bool(best and not cfg.early_stopping.patience and best != cfg.early_stopping.metric)


IDLE = (
    # What a plan decides.
    *(Idle(key, lambda cfg: bool(plan_of(cfg)), _decided) for key in (*_PLAN_CHOOSES, *_PLAN_SCHEDULES)),
    Idle("tables", lambda cfg: plan_of(cfg) not in ("", "auto"), _decided),
    *(Idle(f"tables.{name}", lambda cfg: bool(plan_of(cfg)), _decided) for name in ("replicate_below", "local_size")),
    # Exchange and tables.
    Idle("exchange.kind", all_replicated, "every table is replicated, and those travel by no exchange"),
    Idle(
        "exchange.kind",
        lambda cfg: not may_use(cfg, cfg.exchange.kind),
        "tables.exchange_per_table names another one for every table",
    ),
    Idle(
        "exchange.wire_dtype",
        lambda cfg: not may_use(cfg, "window"),
        "only rows of the window exchange travel in it: exchange=window, or tables.exchange_per_table",
    ),
    Idle(
        "exchange.dense_wire_dtype", one_copy, "every stage of the tower is on one rank, so no gradient of it travels"
    ),
    Idle(
        "schedule.embedding",
        lambda cfg: not _is_paper(cfg) and cfg.schedule.embedding in ("ahead", "spread") and not may_use(cfg, "window"),
        "only tables of the window exchange have rows ahead of time: exchange=window, or schedule.embedding=route",
    ),
    Idle(
        "tables.sharding",
        lambda cfg: all(kind != cfg.tables.sharding for kind, _ in kinds_of_tables(cfg)),
        "tables.per_table names a type for every table",
    ),
    Idle("tables.replicate_below", lambda cfg: cfg.tables.sharding != "auto", "only tables.sharding=auto reads it"),
    Idle(
        "tables.local_size",
        lambda cfg: not {cfg.tables.sharding, *cfg.tables.per_table.values()} & set(_AT_NODES),
        f"no table is {', '.join(_AT_NODES[:-1])} or {_AT_NODES[-1]}",
    ),
    # Mesh and schedule.
    Idle("mesh.cuts", one_stage, "mesh.stages=1: the tower is not cut"),
    Idle(
        "mesh.feed",
        lambda cfg: cfg.mesh.feed == "everyone" and bool(family(cfg)) and cfg.mesh.stages == 1,
        "mesh.stages=1: every rank reads its own rows",
    ),
    Idle("schedule.buffers", lambda cfg: cfg.schedule.embedding == "none", "schedule.embedding=none: no rows travel"),
    Idle(
        "schedule.buffers",
        lambda cfg: not _is_paper(cfg) and not may_use(cfg, "window"),
        "only rows of the window exchange travel by microbatch",
    ),
    Idle("schedule.chunks", lambda cfg: family(cfg) not in LOOPED, f"only schedule={', '.join(LOOPED)} have chunks"),
    *(
        Idle(f"schedule.{name}", lambda cfg: family(cfg) != "chimera", "only schedule=chimera reads it")
        for name in ("pipelines", "beyond")
    ),
    Idle(
        "schedule.memory",
        lambda cfg: not _is_paper(cfg) and family(cfg) not in ("greedy", "auto"),
        "only schedule=greedy and schedule=auto read it",
    ),
    *(Idle(key, lambda cfg: family(cfg) != "auto", "only schedule=auto reads it") for key in _AUTO_ONLY),
    # Costs.
    Idle(
        "cost",
        lambda cfg: "planner" in cfg and not cfg.cost.file,
        "costs come from the topology, the tower and the tables; cost=profiled takes what recpipe profile measured",
    ),
    Idle(
        "cost",
        _is_idle_cost,
        "in a run only schedule=auto, schedule=greedy and trace.steps read costs, and cost.file with mesh.stages above 1",
    ),
    Idle("cost.microseconds", lambda cfg: not _is_paper(cfg), "a recorded run counts in milliseconds"),
    *(
        Idle(key, lambda cfg: cfg.schedule.embedding == "none", "schedule.embedding=none: no rows travel")
        for key in _OF_EXCHANGE
    ),
    Idle(
        "cost.early",
        lambda cfg: cfg.schedule.embedding not in ("ahead", "spread"),
        "no rows travel ahead of time: schedule.embedding=ahead or spread",
    ),
    Idle("cost.near", lambda cfg: cfg.cost.ranks_per_node == 0, "cost.ranks_per_node=0: no two ranks share a node"),
    # Optimizers, guard, launch.
    Idle("optimizer.table.eps", lambda cfg: cfg.optimizer.table.name == "sgd", "optimizer/table=sgd has no eps"),
    Idle("optimizer.dense.eps", lambda cfg: cfg.optimizer.dense.name == "sgd", "optimizer/dense=sgd has no eps"),
    Idle("lr.lr_decay_start", lambda cfg: cfg.lr.lr_decay_steps == 0, "lr.lr_decay_steps=0 means no decay"),
    Idle("guard.max_skipped_in_a_row", lambda cfg: cfg.guard.non_finite != "skip", "guard.non_finite is not skip"),
    Idle(
        "launch.nproc",
        lambda cfg: world_of(cfg) != cfg.launch.nproc,
        lambda cfg: f"the {world_of(cfg)} workers of torchrun or SLURM are used; start as many of them as you want",
    ),
    Idle(
        "launch.max_restarts",
        lambda cfg: found_workers(os.environ) is not None or cfg.launch.nproc == 1,
        "only workers that recpipe itself starts, launch.nproc above 1, are started again; torchrun has --max-restarts",
    ),
    *(
        Idle(f"launch.{name}", lambda cfg: world_of(cfg) == 1, "one rank waits for nobody")
        for name in ("watchdog_seconds", "timeout_seconds")
    ),
    # Validation, checkpoints, resuming.
    *(
        Idle(key, lambda cfg: no_rows(cfg, "valid"), _NO_VALID)
        for key in (
            "early_stopping.metric",
            "checkpoint.keep_best",
            "validation_freq_within_epoch",
            "limit_val_batches",
        )
    ),
    Idle(
        "limit_test_batches",
        lambda cfg: "data" in cfg and no_rows(cfg, "test"),
        "the data have no test rows: give data.test_path, data.test_fraction or data.num_test",
    ),
    Idle(
        "test_batch_size",
        lambda cfg: "data" in cfg and no_rows(cfg, "valid") and no_rows(cfg, "test"),
        "the data have neither validation nor test rows",
    ),
    Idle(
        "early_stopping.patience",
        lambda cfg: cfg.early_stopping.patience > 0 and no_rows(cfg, "valid"),
        _NO_VALID,
    ),
    Idle("early_stopping.metric", _other_metric, "checkpoint.keep_best names another metric, and nothing stops early"),
    Idle(
        "checkpoint.keep_latest_k",
        _keeps_nothing,
        "no checkpoint is due before the end: set checkpoint.every_steps, checkpoint.every_minutes or checkpoint.every_epoch",
    ),
    Idle(
        "checkpoint.async_save",
        lambda cfg: _keeps_nothing(cfg) and not cfg.checkpoint.keep_best and not cfg.early_stopping.patience,
        "nothing is saved before the end of the run",
    ),
    Idle(
        "split",
        lambda cfg: bool(cfg.get("data_path")) and not (Path(cfg.data_path) / "manifest.json").is_file(),
        "all rows of a file are evaluated; only a prepared directory has splits",
    ),
    Idle("resume_allow_grow", lambda cfg: not cfg.resume, "only resume=... reads it"),
    Idle("run.overwrite", lambda cfg: not cfg.run.dir, "without run.dir a run has a directory of its own"),
    # Plans.
    *(
        Idle(
            f"workload.{name}",
            _no_planner_rows,
            "the data set states its tables; set workload.num_embeddings_per_feature",
        )
        for name in ("multi_hot_sizes", "skew", "num_dense", "by_frequency")
    ),
    Idle(
        "batch_size",
        lambda cfg: value_of(cfg, "planner.global_batch") is not None,
        "planner.global_batch says how many rows a step has",
    ),
    Idle(
        "mesh.stages",
        lambda cfg: value_of(cfg, "planner.global_batch") is not None,
        "planner.global_batch says how many rows a step has; planner.stages restricts the stages",
    ),
    Idle(
        "planner.chunks",
        lambda cfg: not set(LOOPED) & set(cfg.planner.schedules),
        f"planner.schedules has none of {', '.join(LOOPED)}",
    ),
    *(
        Idle(
            f"planner.{name}",
            lambda cfg: bool(cfg.planner.plan) and not cfg.planner.sensitivity,
            "planner.plan=FILE is rated, not searched",
        )
        for name in _SEARCHED
    ),
    Idle("planner.torchrec", lambda cfg: bool(cfg.planner.plan), "planner.plan=FILE is rated, not searched"),
    Idle("tables", lambda cfg: bool(value_of(cfg, "planner.plan", "")), "planner.plan=FILE says where tables lie"),
    # Benchmarks.
    Idle(
        "criteo",
        lambda cfg: bool(cfg.ids) and "real" not in cfg.ids,
        "no rows of it are read: ids=[real]",
    ),
)
