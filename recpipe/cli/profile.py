"""``recpipe profile``: measure what a model takes on this machine, for ``cost=profiled``.

The work is in `recpipe.train.profile`; this starts the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recpipe.train.config import TrainConfig

CONFIG = "train"
HELP = "Measure compute, tables and links of a model on this machine, for the simulator and the planner."


@dataclass
class ProfileConfig(TrainConfig):
    """A training configuration whose mesh and schedule are varied.

    Args:
        output: file to write.
    """

    output: str = "profile.json"


SCHEMA = ProfileConfig


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.train.launch import launch_workers
    from recpipe.train.work import profile

    return launch_workers(profile, cfg.launch.nproc, cfg)
