"""SIGTERM, SIGHUP and Ctrl-C: the step is finished, a checkpoint written, and the run leaves; a second time, at once.

The first signal only sets `Interruption.number`; whoever trains looks at it. A thread reads signals from a pipe, so that
the second one works even while the main thread waits in a collective.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

KINDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What our launcher sends in their place: SIGTERM stays the one that ends a worker, whatever it waits for.
FORWARDED = signal.SIGUSR1
# Launchers and terminals send the same signal twice within moments.
SAME_SECONDS = 1.0


def heard() -> tuple[signal.Signals, ...]:
    """The signals that end a command: all of `KINDS`, but a hangup that was inherited as ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(kind for kind in KINDS if not (kind == signal.SIGHUP and ignored))


class Interruption:
    """Takes signals while it is entered, on the main thread; elsewhere it does nothing.

    Args:
        speaks: says what will happen.
        kinds: the signals; None: those that end a command.
    """

    def __init__(self, speaks: bool = True, kinds: Sequence[signal.Signals] | None = None) -> None:
        self.number: int | None = None
        self._speaks, self._kinds, self._when = speaks, heard() if kinds is None else kinds, 0.0
        self._before: dict[signal.Signals, object] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it."""
        return 128 + (self.number or 0)

    def __enter__(self) -> Interruption:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {kind: signal.signal(kind, _nothing) for kind in self._kinds}
        self._listener = threading.Thread(target=self._listen, name="recpipe-signals", daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_fd)
        self._writer.close()
        self._listener.join()

    def _listen(self) -> None:
        with self._reader:
            while received := self._reader.recv(1):
                if received[0] in self._before:
                    self._take(received[0])

    def _take(self, number: int) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._when = number, now
            if self._speaks:
                logger.warning("stopping: finishing the step, then a checkpoint; the same signal again leaves at once")
        elif now - self._when > SAME_SECONDS:
            os._exit(128 + number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The pipe has it; a handler in Python there must be, or the signal's own action would happen."""
