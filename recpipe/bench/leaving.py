"""Ctrl-C and SIGTERM of ``recpipe bench``: an exception, so that ranks and namespaces are removed on the way out.

An exception from a signal's handler is lost where Python has nobody to hand it to: in a destructor, in the callback of a weak
reference. So it is raised again, by an alarm, until somebody handles it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 1.0


@contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt and SIGTERM raises SystemExit; to be entered on the main thread.

    SIGINT does so even where it was inherited as ignored, as jobs in the background of a script have it.
    """
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    alarm = signal.getitimer(signal.ITIMER_REAL)
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, _leave)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *alarm)
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    def again(_: int, __: FrameType | None) -> None:
        if not _somebody_leaves():
            raise leaving

    leaving = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
    raise leaving


def _somebody_leaves() -> bool:
    """Whether the main thread is in an ``__exit__``, ``finally`` or ``except`` on the way out, which must not be cut short."""
    handled = sys.exc_info()[1]
    return handled is not None and not isinstance(handled, Exception)
