"""``recpipe train``: train a model. The work is in `recpipe.train.session`; this starts the workers."""

from __future__ import annotations

from typing import Any

from hydra.core.hydra_config import HydraConfig

from recpipe.train.config import TrainConfig

CONFIG = "train"
SCHEMA = TrainConfig
HELP = "Train a model on local workers, or on those of torchrun or SLURM."


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.launch import launch_workers
    from recpipe.train.session import run_train

    if cfg.resume not in ("", "auto"):
        from recpipe.train.resume import saved_settings

        cfg = saved_settings(cfg, HydraConfig.get().overrides.task)
    return launch_workers(run_train, cfg.launch.nproc, cfg, max_restarts=cfg.launch.max_restarts)
