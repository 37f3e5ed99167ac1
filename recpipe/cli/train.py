"""``recpipe train``: train a model. The work is in `recpipe.train.session`; this starts the workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from recpipe.cli.effects import check_effects, settings_of
from recpipe.cli.fit import check_run
from recpipe.train.config import TrainConfig

logger = logging.getLogger(__name__)

CONFIG = "train"
SCHEMA = TrainConfig
HELP = "Train a model on local workers, or on those of torchrun or SLURM."


def implied(settings: Sequence[str]) -> list[str]:
    """Choices of groups that follow from the checkpoint of ``resume=DIR``, so that single settings of them can be given.

    Args:
        settings: of the command line, ``key=value``.
    """
    given = dict(word.partition("=")[::2] for word in settings)
    folder = Path(given.get("resume", "").strip("\"'"))
    if "experiment" in given or (not (folder / "manifest.json").is_file() and not (folder / "checkpoints").is_dir()):
        return []
    from recpipe.train.resume import saved_choices

    return [f"{group}={choice}" for group, choice in saved_choices(folder).items() if group not in given]


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.finished import finished_run
    from recpipe.train.launch import launch_workers, worker_environment
    from recpipe.train.work import train

    if cfg.resume not in ("", "auto"):
        from recpipe.train.resume import saved_settings

        words = HydraConfig.get().overrides.task
        cfg = saved_settings(cfg, words)
        check_run(cfg)
        check_effects(cfg, settings_of(words), "train")
    said = finished_run(cfg)
    if said:
        if worker_environment().rank == 0:
            logger.info(said)
        return 0
    return launch_workers(train, cfg.launch.nproc, cfg, max_restarts=cfg.launch.max_restarts)
