"""The report as one page that works from a file without a network."""

from __future__ import annotations

from typing import Any

from recpipe.planner.search import Rated


def page(facts: dict[str, Any], rated: Rated) -> str:
    """To come."""
    return "<!doctype html>"
