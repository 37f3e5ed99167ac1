"""Counts the bytes this rank hands to others, by purpose, and on request keeps a record of every message.

What a rank sends to itself is not traffic.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

Wait = Callable[[], object]


class Work(Protocol):
    """What is under way: a `torch.distributed.Work`, or several in turn."""

    def wait(self) -> object: ...


@dataclass
class Message:
    """One collective or point-to-point message, as this rank saw it; times are `time.perf_counter` seconds.

    Args:
        purpose: as in `Traffic`.
        num_bytes: that this rank sent; 0 for what it only received.
        label: what the caller was doing when it was issued.
        issued: when.
        done: when everything had left and arrived; None while it is under way.
        waits: (label, start, end) of each time that somebody was held up by it.
    """

    purpose: str
    num_bytes: int
    label: object
    issued: float
    done: float | None = None
    waits: list[tuple[object, float, float]] = field(default_factory=list)


class Traffic:
    """Bytes sent to other ranks since the last `reset`, by purpose (``ids``, ``rows``, ``row_gradients``, ``dense``, ...).

    Attributes:
        label: set by whoever drives communication, to say what messages belong to.
        messages: one record a message where `recording`; else empty.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.recording = False
        self.messages: list[Message] = []
        self.label: object = None

    def add(self, purpose: str, num_bytes: int) -> None:
        self.sent[purpose] += num_bytes

    def track(self, purpose: str, work: Work, num_bytes: int = 0) -> Wait:
        """Counts what leaves, and says how to wait for `work`: plainly, or with times where messages are recorded."""
        if num_bytes:
            self.add(purpose, num_bytes)
        if not self.recording:
            return work.wait
        message = Message(purpose, num_bytes, self.label, time.perf_counter())
        self.messages.append(message)
        arrived: Future[None] = Future()
        threading.Thread(target=_finish, args=(work, message, arrived), daemon=True).start()

        def wait() -> None:
            start = time.perf_counter()
            arrived.result()
            message.waits.append((self.label, start, time.perf_counter()))

        return wait

    def reset(self) -> None:
        self.sent.clear()

    def total(self, *purposes: str) -> int:
        """Bytes of the named purposes, or of all."""
        return sum(self.sent[purpose] for purpose in purposes) if purposes else sum(self.sent.values())


def _finish(work: Work, message: Message, arrived: Future[None]) -> None:
    """Waits on a thread of its own: gloo tells of a point-to-point message to nobody but who waits."""
    try:
        work.wait()
    except Exception as error:  # belongs to whoever waits for the message
        arrived.set_exception(error)
    else:
        message.done = time.perf_counter()
        arrived.set_result(None)
