"""``recpipe eval``: score a checkpoint. The work is in `recpipe.train.session`; this starts the workers."""

from __future__ import annotations

from typing import Any

from recpipe.train.config import EvalConfig

CONFIG = "eval"
SCHEMA = EvalConfig
HELP = "Score a checkpoint on held-out rows, at any number of ranks."


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.launch import launch_workers
    from recpipe.train.session import run_eval

    return launch_workers(run_eval, cfg.launch.nproc, cfg)
