"""Ctrl-C in a command: one line and exit code 130, also while modules are imported.

A KeyboardInterrupt inside an import may be swallowed, or leave a half-imported module whose first use fails with an error of
another name. So there the process ends in the handler, which imports nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from recpipe.train.leaving import importing

EXIT_INTERRUPTED = 130


@contextmanager
def ends_by_ctrl_c() -> Iterator[None]:
    """Takes Ctrl-C while it is entered, where Python's own handler would; one that is ignored stays so."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _take)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _take(number: int, frame: FrameType | None) -> None:
    if importing(frame):
        os.write(2, b"interrupted\n")
        os._exit(EXIT_INTERRUPTED)
    raise KeyboardInterrupt
