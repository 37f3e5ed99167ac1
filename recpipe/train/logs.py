"""Log lines of a run as plain text on stdout; without torch, so that every command can use it."""

from __future__ import annotations

import logging
import sys


def log_plainly() -> None:
    """Messages of recpipe from INFO on, of everything else from WARNING on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("recpipe").setLevel(logging.INFO)
