"""Notices that a rank stands still while others wait for it, names it, and has all ranks leave.

Every rank tells a common store, from a thread, what its main thread does: its calls now, and for how long they have been
the same. A rank that stands in a collective asks what the others do. One that tells nothing any more is stopped or gone; one
that stands elsewhere than in a collective hangs there. No program has to mark where it is.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from recpipe.train.rendezvous import Store, board, number_of_start

logger = logging.getLogger(__name__)

_PACKAGES = ("recpipe/comm", "torch/distributed", "torchrec/distributed")
_WAITING_IN = tuple(f"{os.sep}{package.replace('/', os.sep)}{os.sep}" for package in _PACKAGES)


@dataclass(frozen=True)
class Beat:
    """What a rank tells of itself.

    Args:
        count: number of the beat.
        action: step and place in the program.
        waits: it stands in a collective.
        still: seconds for which its calls have been the same.
    """

    count: int
    action: str
    waits: bool
    still: float


class Watchdog:
    """Watches from a thread while it is entered.

    Args:
        rank, world: this rank and the number of ranks.
        seconds: so long may a rank stand still.
        step: gives the step at hand.
        fail: called with a message, from the thread, when a rank was found; it should end the process.
        store: where beats are told; None: that of the run (`rendezvous.board`); without any there is no watch.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        seconds: float,
        step: Callable[[], int],
        fail: Callable[[str], None],
        store: Store | None = None,
    ) -> None:
        self._rank, self._world, self._seconds, self._step, self._fail = rank, world, seconds, step, fail
        self._store = store
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: tuple[int, tuple[Any, ...]] = (-1, ())
        self._since = time.monotonic()
        self._heard: dict[int, tuple[Beat, float]] = {}
        self._count = 0

    def __enter__(self) -> Watchdog:
        if self._seconds and self._world > 1:
            self._store = self._store or board(max(self._seconds, 5))
            if self._store is not None:
                # Asked now, this thread would find itself here.
                self._tell(Beat(0, f"step {self._step()}, before anything was seen of it", False, 0.0))
                self._thread = threading.Thread(target=self._watch, name="recpipe-watchdog", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            # A thread inside the store when Python ends would take the process down with it.
            self._thread.join(5)

    def _watch(self) -> None:
        interval = min(self._seconds / 5, 2.0)
        while not self._over.wait(interval):
            try:
                beat = self._look()
                self._tell(beat)
                message = self._judge(beat) if beat.waits and beat.still > self._seconds / 2 else ""
            except RuntimeError as error:
                # The store lies with rank 0 or a launcher: one that is stopped does not answer.
                message = (
                    f"the store of the run does not answer ({str(error).splitlines()[0]})" if self._over_due() else ""
                )
            if message and not self._over.is_set():
                self._fail(message)
                return

    def _over_due(self) -> bool:
        return time.monotonic() - self._since > self._seconds

    def _look(self) -> Beat:
        """What the main thread does now."""
        calls, step = _calls(sys._current_frames().get(self._main or 0)), self._step()
        if (step, calls) != self._seen:
            self._seen, self._since = (step, calls), time.monotonic()
        self._count += 1
        place, waits = describe([(code.co_filename, code.co_name) for code, _ in calls])
        return Beat(self._count, f"step {step}, {place}", waits, time.monotonic() - self._since)

    def _tell(self, beat: Beat) -> None:
        assert self._store is not None
        self._store.set(_key(self._rank), json.dumps([beat.count, beat.action, beat.waits, beat.still]))

    def _judge(self, mine: Beat) -> str:
        """Who keeps this rank waiting, as a message; empty while nobody does for too long."""
        assert self._store is not None
        now, others = time.monotonic(), [rank for rank in range(self._world) if rank != self._rank]
        for rank, text in zip(others, self._store.multi_get([_key(rank) for rank in others]), strict=True):
            beat = Beat(*json.loads(text)) if text else Beat(-1, "its start", False, 0.0)
            if rank not in self._heard or self._heard[rank][0].count != beat.count:
                self._heard[rank] = (beat, now)
        silent, busy = [], []
        for rank, (beat, when) in self._heard.items():
            if now - when >= self._seconds:
                silent.append(f"rank {rank} has been silent for {now - when:.0f} s; last it was at {beat.action}")
            elif not beat.waits and beat.still >= self._seconds:
                busy.append(f"rank {rank} has not moved for {beat.still:.0f} s from {beat.action}")
        found = silent or busy
        if (
            not found
            and mine.still >= 2 * self._seconds
            and all(b.still >= self._seconds for b, _ in self._heard.values())
        ):
            where = "; ".join(f"rank {rank}: {beat.action}" for rank, (beat, _) in sorted(self._heard.items())[:4])
            found = [f"all ranks wait for each other; rank {self._rank}: {mine.action}; {where}"]
        return "; ".join(found)


def describe(calls: Sequence[tuple[str, str]]) -> tuple[str, bool]:
    """Where a thread is, for people, and whether it waits there for other ranks.

    Args:
        calls: file and function of each call, the innermost last.
    """
    ours = [(file, name) for file, name in calls if f"{os.sep}recpipe{os.sep}" in file]
    waits = any(mark in file for mark in _WAITING_IN for file, _ in calls[-4:])
    acting = [(file, name) for file, name in ours if _WAITING_IN[0] not in file] or ours or list(calls) or [("?", "?")]
    file, name = acting[-1]
    return f"{Path(file).parent.name}/{Path(file).name} {name}", waits


def _calls(frame: FrameType | None) -> tuple[Any, ...]:
    """Every call of a thread with its place in it, the innermost last."""
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(found))


def _key(rank: int) -> str:
    return f"recpipe/beat/{number_of_start()}/{rank}"

