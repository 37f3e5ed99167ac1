"""How well a rank hides its messages: what compute waited for, compute without any network, and the network without compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from recpipe.bench.wire import Call, Tape, playing, recording, replay
from recpipe.runtime.ledger import make_ledger, totals
from recpipe.runtime.recorder import Recorder

if TYPE_CHECKING:
    from recpipe.bench.recpipe_side import RecpipeSide

EXCHANGE_OPS = ("ED", "PO", "EO", "EG", "DG")
_PURPOSES = ("ids", "rows", "row_gradients")


class ExchangeProbe:
    """Requests of one contestant; each runs whole rounds of its batches, so that a recorded round fits a later one.

    Args:
        side: the contestant.
    """

    def __init__(self, side: RecpipeSide) -> None:
        self._side = side
        self._tape = Tape()

    @property
    def requests(self) -> dict[str, Callable[..., dict[str, Any]]]:
        return {"exposed": self.exposed, "record": self.record, "alone": self.alone, "network": self.network}

    def exposed(self) -> dict[str, Any]:
        """Seconds of a step for which compute stood still.

        Returns:
            ``exchange`` for ids, rows and row gradients, from the moment when every rank had issued its part; ``late``: before
            that moment, which no network can help; ``by_op``: the first by op, and that of all other messages as it is.
        """
        job, steps = self._side.job, self._side.period
        first = job.trainer.step
        recorder = Recorder(job.traffic, job.place, first, first + steps)
        job.trainer.executor.recorder = recorder
        self._run(steps)
        job.trainer.executor.recorder, job.traffic.recording = None, False
        whole = _exchange(_waited(recorder))
        self._cut_off_what_was_late()
        found = _waited(recorder)
        job.traffic.messages.clear()
        return {"exchange": _exchange(found), "late": whole - _exchange(found), "by_op": found}

    def _cut_off_what_was_late(self) -> None:
        """Begins every wait when the last member of its exchange was issued; one machine has one clock. Collective."""
        job = self._side.job
        for purpose in _PURPOSES:
            mine = [message for message in job.traffic.messages if message.purpose == purpose]
            everyone = job.groups.gather_objects([message.issued for message in mine])
            for message, issued in zip(mine, zip(*everyone, strict=True), strict=True):
                message.waits = [(who, min(max(start, *issued), end), end) for who, start, end in message.waits]

    def record(self) -> dict[str, Any]:
        """Keeps the messages of one round; gives how many of each kind there are in a step."""
        self._tape = Tape()
        with recording(self._tape):
            for _ in range(self._side.period):
                self._side.step()
                self._tape.step += 1
        names = [call.name for call in self._tape.calls]
        return {name: names.count(name) / self._side.period for name in dict.fromkeys(names)}

    def alone(self, warmup: int) -> dict[str, Any]:
        """Seconds of a step of which every message is there at once."""
        with playing(self._tape):
            self._run(warmup)
            start = time.perf_counter()
            self._run(self._side.period - warmup)
            return {"seconds": (time.perf_counter() - start) / (self._side.period - warmup)}

    def network(self) -> dict[str, Any]:
        """Seconds of the messages of a step without a trainer: ``exchange``, kind after kind; ``all``, everything at once."""
        by_step = [[call for call in self._tape.calls if call.step == step] for step in range(self._side.period)]
        dist.barrier()
        exchange = sum(replay(part) for calls in by_step for part in self._kinds(calls))
        dist.barrier()
        return {"exchange": exchange / len(by_step), "all": sum(map(replay, by_step)) / len(by_step)}

    def _kinds(self, calls: list[Call]) -> list[list[Call]]:
        """Messages of ids, rows and row gradients."""
        groups = self._side.job.groups
        return [
            [call for call in calls if call.group is group] for group in (groups.ids, groups.rows, groups.gradients)
        ]

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self._side.step()


def _waited(recorder: Recorder) -> dict[str, float]:
    """Seconds of a step by op. In the first and last steps, some of what was waited for was issued or used outside."""
    steps = recorder.stop - recorder.first
    inner = [wait for wait in recorder.waits() if 1 <= wait.waiting.step < steps - 1]
    return {op: row["exposed"] / 1000 for op, row in totals(make_ledger([], inner), steps - 2).items()}


def _exchange(by_op: dict[str, float]) -> float:
    return sum(seconds for op, seconds in by_op.items() if op in EXCHANGE_OPS)
