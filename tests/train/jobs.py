"""Small training jobs for tests: a configuration by dotted names, run on gloo ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from recpipe.comm import Groups
from recpipe.data.config import SCHEMAS as DATA
from recpipe.model.config import SCHEMAS as MODELS
from recpipe.train.config import TrainConfig, VerifyConfig
from recpipe.train.setup import Job, build_job
from recpipe.train.verify import compare_with_reference
from tests.ranks import run_ranks

STEPS = 50
# 4 full steps of 8 rows on each of `world` ranks and one of 2 rows: uneven on 2 ranks, empty on two of 4.
SMALL = {
    "data.num_valid": 40,
    "data.num_test": 41,
    "data.num_features": 6,
    "data.num_dense": 4,
    "data.min_ids": 3,
    "data.max_ids": 60,
    "batch_size": 8,
    "model.embedding_dim": 8,
}


def small_config(world: int, root: type = TrainConfig, data: str = "synthetic", model: str = "dlrm", **settings: Any) -> Any:
    """A configuration; keys use ``__`` for dots."""
    cfg = OmegaConf.structured(root(data=DATA[data](), model=MODELS[model]()))
    dotted = {**SMALL, "data.num_train": 8 * world * 4 + 2, **{k.replace("__", "."): v for k, v in settings.items()}}
    if model == "dlrm":
        dotted.setdefault("model.dense_arch_layer_sizes", [16, 8])
    for key, value in dotted.items():
        OmegaConf.update(cfg, key, value)
    return cfg


def verify(world: int, break_it: Callable[[Job], None] | None = None, **settings: Any) -> dict[str, float]:
    """Differences from the reference after 50 steps on `world` ranks."""
    cfg = small_config(world, VerifyConfig, **settings)
    return run_ranks(_verify, world, cfg, break_it)[0]


def _verify(rank: int, world: int, cfg: Any, break_it: Callable[[Job], None] | None) -> dict[str, float]:
    job = build_job(cfg, Groups.create())
    if break_it is not None:
        break_it(job)
    return compare_with_reference(job, STEPS)
