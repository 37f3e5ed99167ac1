"""Signals as exceptions, for commands and phases that keep nothing half done: they clean up on the way out.

An exception from a signal's handler is lost where Python has nobody to hand it to: in a destructor, in the callback of a weak
reference. So it is raised again, by an alarm, until somebody handles it. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from recpipe.train.interrupt import heard

AGAIN_SECONDS = 1.0


@contextmanager
def signals_raise(kinds: Sequence[signal.Signals] | None = None) -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt, and any other signal raises SystemExit; only on the main thread.

    SIGINT does so even where it was inherited as ignored, as jobs in the background of a script have it.

    Args:
        kinds: the signals; None: those that end a command.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    chosen = heard() if kinds is None else kinds
    before = {kind: signal.getsignal(kind) for kind in (*chosen, signal.SIGALRM)}
    alarm = signal.getitimer(signal.ITIMER_REAL)
    for kind in chosen:
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

    if importing(frame):
        os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)
    leaving = KeyboardInterrupt() if number == signal.SIGINT else Stopped(number)
    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
    raise leaving


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: an exception there may be swallowed, or leave half of the module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


class Stopped(SystemExit):
    """Ends a command that was told to end by another signal than Ctrl-C; its code is 128 + the number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def _somebody_leaves() -> bool:
    """Whether the main thread is in an ``__exit__``, ``finally`` or ``except`` on the way out, which must not be cut short."""
    handled = sys.exc_info()[1]
    return handled is not None and not isinstance(handled, Exception)
