"""Log lines of a run as plain text on stdout; without torch, so that every command can use it."""

from __future__ import annotations

import logging
import sys

from recpipe.escapes import printable


def log_plainly() -> None:
    """Messages of recpipe from INFO on, of everything else from WARNING on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("recpipe").setLevel(logging.INFO)


class _Printable(logging.Formatter):
    """Lines as a terminal may have them: names from a stranger's file with their control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
