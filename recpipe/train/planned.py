"""``plan=auto`` and ``plan=FILE``: the planner's choice of tables, mesh and schedule takes the place of the settings."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.comm import Groups
from recpipe.planner.build import made_for
from recpipe.planner.inputs import problem_of
from recpipe.planner.measure import topology_here
from recpipe.planner.plan import load_plan, overrides, require_same
from recpipe.planner.session import plan_for_run
from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.planner.topology import Topology

logger = logging.getLogger(__name__)

_USABLE = 0.8
"""Share of this machine's memory that plans count on."""


def apply_plan_setting(cfg: Any, groups: Groups) -> None:
    """Sets what the plan decides in `cfg`, the same on every rank; collective.

    Raises:
        PlanError: nothing fits, or the plan was made for another world, model, data set or batch.
    """
    if not cfg.plan:
        return
    text = json.dumps(_chosen(cfg, groups.world)) if groups.rank == 0 else ""
    for key, value in json.loads(groups.broadcast_text(text)).items():
        OmegaConf.update(cfg, key, value, merge=False)


def _chosen(cfg: Any, world: int) -> dict[str, Any]:
    topology = _topology(world)
    if cfg.plan == "auto":
        plan = plan_for_run(cfg, topology)
    else:
        plan = load_plan(Path(cfg.plan))
        problem = problem_of(cfg, topology, PlannerSettings(), WorkloadSettings())
        require_same(plan, made_for(problem), [demand.spec for demand in problem.tables])
    values = overrides(plan)
    shown = {key: value for key, value in values.items() if not key.startswith("tables.")}
    logger.info("plan: %s; tables as planned", ", ".join(f"{key}={value}" for key, value in shown.items()))
    return values


def _topology(world: int) -> Topology:
    """Machines like this one, as many as the ranks here are of all."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _USABLE / ranks
    return topology_here(world // ranks, ranks, memory)
