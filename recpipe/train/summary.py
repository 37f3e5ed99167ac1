"""`summary.json` and `plan.json` of a run."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from recpipe import __version__
from recpipe.embedding.layout import TableLayout

if TYPE_CHECKING:
    from recpipe.train.loop import TrainingLoop


def training_summary(loop: TrainingLoop, split: str, report: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Result, speed, traffic and versions of a run; collective."""
    job = loop.job
    # Traffic is counted by this process, a resumed run's steps from the beginning.
    steps = max(loop.clock.steps, 1)
    purposes = ("ids", "rows", "row_gradients", "dense", "activation", "gradient", "feed")
    sent = job.groups.sum_cpu(torch.tensor([job.traffic.sent[purpose] for purpose in purposes])).tolist()
    memory = job.groups.gather_cpu(torch.tensor([job.tables.num_bytes()])).tolist()
    dropped, bad_ids = loop.counts()
    metrics = {name: report.get(name) for name in ("auc", "logloss", "ne", "calibration", "accuracy", "ctr")}
    return {
        "split": split,
        **metrics,
        "test_rows": report.get("rows"),
        "valid": loop.best.report,
        "best_step": loop.best.step,
        "teacher": job.dataset.teacher,
        "rows": loop.progress.rows,
        "steps": job.trainer.step,
        "epochs": loop.progress.epoch,
        "validations_since_best": loop.best.since,
        "rows_per_s": loop.clock.rows_per_s,
        "seconds": seconds,
        "seconds_to_first_step": loop.seconds_to_first_step,
        "bytes_sent_per_step": {name: count / steps for name, count in zip(purposes, sent, strict=True)},
        "table_bytes_by_rank": memory,
        "dropped_rows": dropped,
        "bad_ids": bad_ids,
        "skipped_steps": loop.progress.skipped,
        "resumed_from": None if loop.source is None else str(loop.source.folder),
        "saving_seconds": loop.saving_seconds,
        "data": job.dataset.source,
        "data_warnings": list(job.dataset.warnings),
        "unseen_share": job.dataset.unseen,
        "seed": job.cfg.seed,
        "world_size": job.groups.world,
        "global_batch": loop.feed.global_batch,
        "versions": versions(),
    }


def plan_json(layouts: Sequence[TableLayout], world: int) -> str:
    """Where every rectangle of every table lies."""
    return json.dumps({"world_size": world, "tables": [layout.to_json() for layout in layouts]}, indent=1)


def placement_line(layouts: Sequence[TableLayout]) -> str:
    """The placement in one line: how many tables of each kind."""
    kinds = Counter((layout.sharding, layout.exchange) for layout in layouts)
    parts = [
        f"{n} {kind}" + ("" if kind == "replicated" else f" ({exchange})") for (kind, exchange), n in kinds.items()
    ]
    return "tables: " + ", ".join(parts)


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    found = {"recpipe": __version__, "python": platform.python_version()}
    for package in ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "hydra-core", "numpy", "pandas", "pyarrow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
