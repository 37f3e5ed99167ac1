"""``recpipe plan``: choose tables, stages, schedule and memory together, on paper, and explain the choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.planner.topology import TopologySettings
from recpipe.train.config import TrainConfig

CONFIG = "plan"
HELP = "Plan tables, stages and schedule for any cluster; needs no GPU and starts no process."
FLAGS = {"-v": "planner.verbose=true", "--verbose": "planner.verbose=true"}


@dataclass
class PlanConfig(TrainConfig):
    """Root of ``conf/plan.yaml``: a training configuration, with the machines to plan it for."""

    topology: TopologySettings = field(default_factory=TopologySettings)
    workload: WorkloadSettings = field(default_factory=WorkloadSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)


SCHEMA = PlanConfig


def main(cfg: Any) -> int:
    """Plans what `cfg` describes. In a sweep prints one row a job. Returns the exit code: 1 if nothing fits."""
    from recpipe.cli.simulate import _output_dir, _sweep_job
    from recpipe.planner.session import run_plan, sizing_row

    folder = Path(cfg.planner.out) if cfg.planner.out else _output_dir()
    job = _sweep_job()
    if job is None:
        return run_plan(cfg, folder)
    return sizing_row(cfg, folder, job)
