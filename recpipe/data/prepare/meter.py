"""How far a phase is: rows so far, rows a second, time left; told to whoever shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class Progress:
    """One report.

    Args:
        phase: parse, count or write.
        share: of the phase that is done, 0 to 1.
        rows: lines or rows handled so far.
        seconds: since the phase began.
        finished: this is the last report of the phase.
    """

    phase: str
    share: float
    rows: int
    seconds: float
    finished: bool = False

    @property
    def seconds_left(self) -> float:
        """If it goes on as it did; infinite before the first piece is done."""
        return self.seconds * (1 - self.share) / self.share if self.share > 0 else float("inf")

    def line(self) -> str:
        """As text."""
        pace = f"{self.phase}: {self.rows:,} rows in {self.seconds:.1f} s, {self.rows / max(self.seconds, 1e-9):,.0f} a second"
        return pace if self.finished else f"{pace}, {self.share:.0%} done, {self.seconds_left:,.0f} s left"


Report = Callable[[Progress], None]


class Meter:
    """Adds up the work of several threads and reports it now and then.

    Args:
        phase: its name.
        total: amount of work, in any unit.
        report: takes the reports.
    """

    def __init__(self, phase: str, total: int, report: Report) -> None:
        self._phase, self._total, self._report = phase, max(total, 1), report
        self._lock = threading.Lock()
        self._done = self._rows = 0
        self._start = self._said = time.monotonic()

    def add(self, amount: int, rows: int = 0) -> None:
        """Some work is done."""
        with self._lock:
            self._done += amount
            self._rows += rows
            now = time.monotonic()
            if now - self._said > INTERVAL_SECONDS:
                self._said = now
                self._report(self._progress(now, finished=False))

    def _progress(self, now: float, finished: bool) -> Progress:
        """As it stands."""
        share = 1.0 if finished else min(1.0, self._done / self._total)
        return Progress(self._phase, share, self._rows, now - self._start, finished)

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._report(self._progress(time.monotonic(), finished=True))


def to_log(log: Callable[[str], None], every_seconds: float = 30.0) -> Report:
    """Reports as lines of a log: the last of each phase, and one every half minute."""
    said = [time.monotonic()]

    def report(progress: Progress) -> None:
        if progress.finished or time.monotonic() - said[0] > every_seconds:
            said[0] = time.monotonic()
            log(progress.line())

    return report
