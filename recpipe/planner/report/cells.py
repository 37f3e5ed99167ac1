"""Rows of the tables that the terminal and the page both show, as texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def measured_cells(found: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Figure, predicted, measured, difference."""
    return [
        (
            one["name"],
            f"{one['predicted']:.4g}",
            f"{one['measured']:.4g}",
            f"{one['predicted'] / one['measured'] - 1:+.1%}" if one["measured"] else "-",
        )
        for one in found
    ]


def change_cells(found: Sequence[dict[str, Any]], shown: Callable[[str], str] = str) -> list[tuple[str, ...]]:
    """Change, ms, rows a second, gain, plan; or why there is none.

    Args:
        shown: what to do to texts that may be long.
    """
    return [
        (
            one["change"],
            f"{one['step_ms']:.4g}",
            f"{one['rows_per_second']:,.0f}",
            f"{one['gain']:+.1%}",
            shown(one["plan"]),
        )
        if one.get("step_ms")
        else (one["change"], "-", "-", "-", shown(one["note"]))
        for one in found
    ]
