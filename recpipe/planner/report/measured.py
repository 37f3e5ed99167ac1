"""Figures of a run beside those of its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recpipe.errors import PlanError
from recpipe.untrusted import Source


def beside(facts: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Predicted and measured figures.

    Args:
        facts: of `recpipe.planner.report.facts`.
        path: the ``summary.json`` of a run.

    Raises:
        PlanError: there is no such file, or it is of another batch or number of ranks.
    """
    try:
        summary = _summary(path)
    except PlanError as error:
        raise PlanError(f"planner.measured={error}") from None
    for key, here in (("world_size", facts["topology"]["ranks"]), ("global_batch", facts["global_batch"])):
        if summary.get(key) != here:
            raise PlanError(f"planner.measured={path}: {key} is {summary.get(key)}, the plan has {here}")
    pairs = [("rows/s", facts["rows_per_second"], summary["rows_per_s"])]
    pairs.append(("step ms", facts["step_ms"], facts["global_batch"] / summary["rows_per_s"] * 1e3))
    predicted = [one["memory_parts"]["tables"] + one["memory_parts"]["table_state"] for one in facts["ranks"]]
    held = summary.get("table_bytes_by_rank", [])
    pairs += [(f"table bytes of rank {rank}", predicted[rank], held[rank]) for rank in range(min(len(held), 8))]
    # A summary adds up over ranks; the plan says what a rank sends in the mean.
    sent = {name: size / summary["world_size"] for name, size in summary.get("bytes_sent_per_step", {}).items()}
    pairs += [
        (f"{name} bytes a rank and step", facts["traffic"][name], sent[name])
        for name in facts["traffic"]
        if name in sent
    ]
    return [{"name": name, "predicted": float(a), "measured": float(b)} for name, a, b in pairs]


def _summary(path: Path) -> dict[str, Any]:
    """The figures of a run that a plan can be held against."""
    known = Source(path, PlanError, non_finite=True).json().fields(("rows_per_s", "world_size"))
    known["rows_per_s"].number(1e-9)
    known["world_size"].integer(1)
    for value in known["table_bytes_by_rank"].items() if "table_bytes_by_rank" in known else ():
        value.number(0)
    for value in known["bytes_sent_per_step"].fields().values() if "bytes_sent_per_step" in known else ():
        value.number(0)
    return {name: value.raw for name, value in known.items()}
