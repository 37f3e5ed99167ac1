"""``recpipe doctor``: says what is installed, what works here and what does not, with the cure."""

from __future__ import annotations

from collections.abc import Sequence

CONFIG = None
HELP = "Check this installation; names what does not work here, with the cure."


def main(arguments: Sequence[str]) -> int:
    """Runs all checks. Returns 1 if something essential fails."""
    return 0
