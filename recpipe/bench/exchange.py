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

EXCHANGE_OPS = ("ED", "PO", "EO", "EG")


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
        """Seconds of a step for which compute stood still: ``exchange`` for ids, rows and row gradients; ``all``."""
        job, steps = self._side.job, self._side.period
        first = job.trainer.step
        recorder = Recorder(job.traffic, job.place, first, first + steps)
        job.trainer.executor.recorder = recorder
        self._run(steps)
        job.trainer.executor.recorder, job.traffic.recording = None, False
        # In the first and last steps, some of what was waited for was issued or used outside the recording.
        inner = [wait for wait in recorder.waits() if 1 <= wait.waiting.step < steps - 1]
        found = {op: row["exposed"] / 1000 for op, row in totals(make_ledger([], inner), steps - 2).items()}
        job.traffic.messages.clear()
        exchange = sum(seconds for op, seconds in found.items() if op in EXCHANGE_OPS)
        return {"exchange": exchange, "all": sum(found.values()), "by_op": found}

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
        exchange = sum(replay(part) for calls in by_step for part in self._exchange(calls))
        dist.barrier()
        return {"exchange": exchange / len(by_step), "all": sum(map(replay, by_step)) / len(by_step)}

    def _exchange(self, calls: list[Call]) -> list[list[Call]]:
        """Messages of ids, rows and row gradients."""
        groups = self._side.job.groups
        return [
            [call for call in calls if call.group is group] for group in (groups.ids, groups.rows, groups.gradients)
        ]

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self._side.step()
