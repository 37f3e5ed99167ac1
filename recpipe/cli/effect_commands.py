"""Settings that a command has, since it shares them with others, and does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recpipe.cli.effect_rule import covers

_LOOP_ONLY = (
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
_OF_A_LAUNCH = ("launch.check_memory", "launch.max_restarts", "launch.watchdog_seconds", "launch.timeout_seconds")
_RATES = tuple(f"optimizer.table.{name}" for name in ("learning_rate", "eps", "l2")) + tuple(
    f"optimizer.dense.{name}" for name in ("learning_rate", "eps", "weight_decay", "clip_norm")
)
_PLANNED = {
    "exchange.wire_dtype": "recpipe plan counts rows in dtype; its report says what 16-bit rows would change",
    "exchange.dense_wire_dtype": "recpipe plan counts gradients in dtype",
    "compute_dtype": "recpipe plan counts the tower in dtype",
    "exchange": "the planner chooses; planner.exchange=[window] or [pooled] restricts it",
    "schedule": "the planner chooses; planner.schedules, planner.microbatches and planner.embedding restrict it",
    "mesh.cuts": "the planner cuts the tower",
    "mesh.replicas": "it follows from planner.stages",
    "mesh.feed": "the planner lets the first stage of a replica read its rows",
    "tables.replicate_below": "the planner chooses; planner.constraints restricts it",
    "tables.local_size": "the topology says how many ranks a node has",
    "run": "recpipe plan runs nothing; planner.out=DIR is where it writes",
    "plan": "recpipe plan makes one; planner.plan=FILE rates one",
    "launch.nproc": "the topology says how many ranks there are",
    "model.row_init": "recpipe plan makes no rows",
    "model.row_init_std": "recpipe plan makes no rows",
    **dict.fromkeys((*_LOOP_ONLY, "lr", "guard", *_RATES, *_OF_A_LAUNCH), "recpipe plan runs nothing"),
}
_PROFILED = {
    "launch.max_restarts": "a measurement that was disturbed is to be taken again",
    "launch.watchdog_seconds": "recpipe profile does not watch its ranks",
    "run": "recpipe profile writes one file: output=FILE",
    "plan": "recpipe profile goes through meshes and schedules itself",
    "mesh.replicas": "recpipe profile goes through all meshes of these ranks",
    "mesh.cuts": "recpipe profile cuts the tower itself",
    **{
        f"schedule.{name}": "recpipe profile goes through schedules itself"
        for name in ("name", "microbatches", "embedding", "chunks", "pipelines", "beyond", "memory", "copies",
                     "try_microbatches", "try_chunks")
    },
    **dict.fromkeys(_LOOP_ONLY, "recpipe profile runs a few training steps only"),
}  # fmt: skip
NOT_READ: Mapping[str, Mapping[str, str]] = {
    "plan": _PLANNED,
    "verify": {
        **dict.fromkeys(_LOOP_ONLY, "recpipe verify runs training steps only"),
        "launch.max_restarts": "a verification whose ranks fail has failed",
    },
    "profile": _PROFILED,
}
"""Command -> setting -> why it is not read there."""

_OF_READING = tuple(
    f"data.{name}"
    for name in ("shuffle", "shuffle_rows", "bad_ids", "non_finite", "num_workers", "multi_hot_sizes",
                 "multi_hot_distribution", "multi_hot_seed")
)  # fmt: skip
ACTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "bench": {
        "contestants": ("compare", "profile", "predict", "plan"),
        "meshes": ("overlap",),
        "microbatches": ("overlap",),
        "profile": ("predict", "plan"),
        "blocks": ("compare", "overlap", "predict", "plan"),
    },
    "checkpoint": {
        "parts": ("convert",),
        "inputs": ("average",),
        "out": ("convert", "export", "average"),
        "json": ("inspect", "verify"),
    },
    "data": {
        "json": ("inspect", "verify"),
        "npy_dir": ("export", "import"),
        "data.multi_hot_sizes": ("export",),
        "data.multi_hot_distribution": ("export",),
        "data.multi_hot_seed": ("export",),
        "data.name": ("prepare", "export"),
        **dict.fromkeys(_OF_READING[:5], ()),
        "data": ("prepare",),
    },
}
"""Command -> setting -> the actions that read it, the most special setting first; what is not named is read by all."""


def not_read(cfg: Any, key: str, command: str) -> str:
    """Why a command, or its action, does not read a setting; empty if it does."""
    reason = next((why for name, why in NOT_READ.get(command, {}).items() if covers(name, key)), "")
    readers = next((one for name, one in ACTIONS.get(command, {}).items() if covers(name, key)), None)
    if reason or readers is None or not _is_action(cfg.action, command) or cfg.action in readers:
        return reason
    if not readers:
        return f"it says how rows are read, and recpipe {command} {cfg.action} reads none for training"
    return f"recpipe {command} {cfg.action} does not read it, only {', '.join(readers)}"


def _is_action(action: str, command: str) -> bool:
    """Whether it is one; of a wrong one the command itself speaks."""
    return action in {name for readers in ACTIONS[command].values() for name in readers}
