"""``recpipe eval``: score a checkpoint. The work is in `recpipe.train.session`; this starts the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recpipe.train.config import EvalConfig

CONFIG = "eval"
SCHEMA = EvalConfig
HELP = "Score a checkpoint on held-out rows, at any number of ranks."


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.check import require_checkpoint
    from recpipe.train.launch import launch_workers
    from recpipe.train.work import evaluate

    require_checkpoint(Path(cfg.checkpoint))
    return launch_workers(evaluate, cfg.launch.nproc, cfg, max_restarts=cfg.launch.max_restarts)
