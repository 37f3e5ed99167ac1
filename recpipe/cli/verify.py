"""``recpipe verify``: compare a configuration with the single-process reference.

The work is in `recpipe.train.session`; this starts the workers.
"""

from __future__ import annotations

from typing import Any

from recpipe.train.config import VerifyConfig

CONFIG = "verify"
SCHEMA = VerifyConfig
HELP = "Run a configuration beside the single-process reference and compare."


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.launch import launch_workers
    from recpipe.train.work import verify

    return launch_workers(verify, cfg.launch.nproc, cfg)
