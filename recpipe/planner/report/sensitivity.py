"""What a change of the problem would do to the plan: each change is planned, in a smaller time box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recpipe.errors import RecpipeError
from recpipe.planner.problem import Problem
from recpipe.planner.search import search


def what_if(problem: Problem, report: dict[str, Any]) -> list[dict[str, Any]]:
    """One more node, twice the batch, 16-bit rows: step, rows a second, and the change of the latter."""
    before = report["rows_per_second"]
    found: list[dict[str, Any]] = []
    for change, other in changes(problem):
        try:
            best = search(other)
        except RecpipeError as error:
            found.append({"change": change, "step_ms": None, "note": str(error)})
            continue
        if not best.fits:
            found.append({"change": change, "step_ms": None, "note": "does not fit"})
            continue
        rows = other.global_batch / best.best.step * 1e3
        found.append(
            {
                "change": change,
                "step_ms": best.best.step,
                "rows_per_second": rows,
                "gain": rows / before - 1,
                "plan": best.best.choice.label,
            }
        )
    return found


def changes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Each change with the problem it makes. Pins stay, where their ranks still exist."""
    scope = replace(problem.scope, seconds=problem.scope.seconds / 4, effort=max(100, problem.scope.effort // 4))
    small = replace(problem, scope=scope)
    last = problem.topology.nodes[-1]
    nodes = (*problem.topology.nodes[:-1], replace(last, count=last.count + 1))
    yield "one more node", replace(small, topology=replace(problem.topology, nodes=nodes))
    yield "twice the batch", replace(small, global_batch=2 * problem.global_batch)
    yield "16-bit rows", replace(small, row_element=2)
