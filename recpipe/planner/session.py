"""One run of the planner: problem, search, report, files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from recpipe.errors import PlanError
from recpipe.planner.build import made_for, to_plan, to_rated
from recpipe.planner.found import Found, Rated
from recpipe.planner.infeasible import explain_misfit
from recpipe.planner.inputs import make_problem, problem_of
from recpipe.planner.plan import Plan, compare, load_plan, overrides, require_same, save_plan
from recpipe.planner.problem import Problem
from recpipe.planner.report.facts import facts, plan_facts
from recpipe.planner.report.html import page
from recpipe.planner.report.measured import beside
from recpipe.planner.report.sensitivity import what_if
from recpipe.planner.report.terminal import render
from recpipe.planner.search import Seed, search
from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.planner.topology import Topology

logger = logging.getLogger(__name__)
_RUN_SECONDS = 10.0
_ROW = "{:<18}{:>7}{:>12}{:>14}{:>11}{:>14}  {}"


def plan_for_run(cfg: Any, topology: Topology) -> Plan:
    """The best plan of a training run, for `train plan=auto`: before any process is started.

    Args:
        cfg: a `recpipe.train.config.TrainConfig`; what it pins in `tables` is kept.
        topology: the machines, for instance of `recpipe.planner.measure.topology_here`.

    Raises:
        PlanError: nothing fits; says what is missing and what would fit.
    """
    problem = problem_of(cfg, topology, PlannerSettings(seconds=_RUN_SECONDS), WorkloadSettings())
    found = search(problem, progress=logger.info)
    if not found.fits:
        raise PlanError(explain_misfit(problem, found))
    return to_plan(problem, found.best, facts(problem, found))


def find(problem: Problem, cfg: Any) -> Found:
    """Searches, with TorchRec's plan as one candidate where asked."""
    return search(problem, seeds_of(problem, cfg.planner.torchrec), logger.info)


def seeds_of(problem: Problem, torchrec: str) -> dict[str, Seed]:
    """Plans from elsewhere that the search has to beat."""
    from recpipe.planner.torchrec_plan import QUICK, torchrec_seed

    size = len(problem.tables) * problem.topology.world
    wanted = torchrec == "always" or (torchrec == "auto" and size <= QUICK)
    return {"torchrec": torchrec_seed} if wanted else {}


def run_plan(cfg: Any, folder: Path) -> int:
    """Plans, prints the report and writes plan.json and report.html. Returns 1 if nothing fits."""
    problem = make_problem(cfg)
    if cfg.planner.plan:
        rated, report = _given(problem, Path(cfg.planner.plan))
    else:
        found = find(problem, cfg)
        if not found.fits:
            print(explain_misfit(problem, found))
            return 1
        rated, report = found.best, facts(problem, found)
    if cfg.planner.measured:
        report["measured"] = beside(report, Path(cfg.planner.measured))
    if cfg.planner.sensitivity:
        report["sensitivity"] = what_if(problem, report)
    print(render(report, cfg.planner.verbose))
    plan = to_plan(problem, rated, report)
    _show_differences(plan, cfg.planner.compare)
    write_report(folder, problem, rated, plan, report)
    return 0


def _given(problem: Problem, path: Path) -> tuple[Rated, dict[str, Any]]:
    """A plan from a file, rated instead of searched."""
    plan = load_plan(path)
    require_same(plan, made_for(problem), [demand.spec for demand in problem.tables], f"plan {path}")
    rated = to_rated(problem, plan)
    assert rated.assignment is not None
    if rated.assignment.shortfall:
        raise PlanError(f"plan {path}: one rank lacks {rated.assignment.shortfall:,.0f} bytes")
    return rated, plan_facts(problem, rated)


def _show_differences(plan: Plan, other: str) -> None:
    if other:
        lines = compare(load_plan(Path(other)), plan)
        print(f"\ndifferences from {other}\n" + ("\n".join(f"  {line}" for line in lines) or "  none"))


def write_report(folder: Path, problem: Problem, rated: Rated, plan: Plan, report: dict[str, Any]) -> None:
    """plan.json, overrides.json and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    save_plan(plan, folder / "plan.json")
    (folder / "overrides.json").write_text(json.dumps(overrides(plan), indent=1) + "\n")
    (folder / "report.html").write_text(page(report, rated))
    print(f"\nwrote plan.json, overrides.json and report.html to {folder}")


def sizing_row(cfg: Any, folder: Path, job: int) -> int:
    """One line of the sizing table of a sweep; machines on which nothing fits are a line, too."""
    problem = make_problem(cfg)
    found = find(problem, cfg)
    top = problem.topology
    if found.fits:
        report = facts(problem, found)
        plan = to_plan(problem, found.best, report)
        folder.mkdir(parents=True, exist_ok=True)
        save_plan(plan, folder / "plan.json")
        (folder / "report.html").write_text(page(report, found.best))
        price = report["price_per_billion_rows"]
        line = _ROW.format(
            top.name,
            top.world,
            f"{report['step_ms']:.4g}",
            f"{report['rows_per_second']:,.0f}",
            f"{report['efficiency']:.0%}",
            f"{price:,.2f}" if price else "-",
            report["choice"],
        )
    else:
        assert found.best.assignment is not None
        short = found.best.assignment.shortfall
        line = _ROW.format(top.name, top.world, "-", "-", "-", "-", f"one rank lacks {short / 1e9:,.2f} GB")
    header = _ROW.format("topology", "ranks", "step ms", "rows/s", "efficiency", "per 1e9 rows", "plan")
    lines = [line] if job else [header, line]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "sizing.txt").open("a" if job else "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0
