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
from recpipe.planner.plan import Plan, load_plan, overrides, require_same
from recpipe.planner.session import plan_for_run
from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.planner.topology import Topology

logger = logging.getLogger(__name__)

PLANNED = "planned.json"
"""File of a run directory: the plan of a run that had one."""
_USABLE = 0.8
"""Share of this machine's memory that plans count on."""


def apply_plan_setting(cfg: Any, groups: Groups) -> Plan | None:
    """Sets what the plan decides in `cfg`, the same on every rank; collective.

    Returns:
        The plan, on rank 0; None elsewhere, and without one.

    Raises:
        PlanError: nothing fits, or the plan was made for another world, model, data set or batch.
    """
    if not cfg.plan:
        return None
    plan = _chosen(cfg, groups.world) if groups.rank == 0 else None
    text = json.dumps(overrides(plan)) if plan else ""
    for key, value in json.loads(groups.broadcast_text(text)).items():
        OmegaConf.update(cfg, key, value, merge=False)
    return plan


def _chosen(cfg: Any, world: int) -> Plan:
    topology = _topology(world)
    if cfg.plan == "auto":
        plan = plan_for_run(cfg, topology)
    else:
        plan = load_plan(Path(cfg.plan))
        problem = problem_of(cfg, topology, PlannerSettings(), WorkloadSettings())
        require_same(plan, made_for(problem), [demand.spec for demand in problem.tables])
    shown = {key: value for key, value in overrides(plan).items() if not key.startswith("tables.")}
    logger.info("plan: %s; tables as planned", ", ".join(f"{key}={value}" for key, value in shown.items()))
    return plan


def _topology(world: int) -> Topology:
    """Machines like this one, as many as the ranks here are of all."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _USABLE / ranks
    return topology_here(world // ranks, ranks, memory)
