"""Rows so far and rows a second, said now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

INTERVAL_SECONDS = 10.0


class Meter:
    """Counts lines from several threads and logs the pace every ten seconds."""

    def __init__(self, verb: str, log: Callable[[str], None]) -> None:
        self._verb, self._log = verb, log
        self._lock = threading.Lock()
        self._lines = 0
        self._start = self._said = time.monotonic()

    def add(self, lines: int) -> None:
        """Count these lines."""
        with self._lock:
            self._lines += lines
            now = time.monotonic()
            if now - self._said > INTERVAL_SECONDS:
                self._said = now
                self._log(self._line(now))

    def _line(self, now: float) -> str:
        """How far we are."""
        return f"{self._verb} {self._lines:,} lines, {self._lines / max(now - self._start, 1e-9):,.0f} a second"

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._log(self._line(time.monotonic()))
