"""Faults planted in a run of two ranks, one each, for `test_sabotage`: small ones, most of them once in a whole run.

Each is a context manager over a job: inside it the run is wrong in one place. Only patches, undone at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from recpipe.embedding.early import TouchedRows
from recpipe.embedding.tables import ShardedTables, TablesStep
from recpipe.embedding.window import Window
from recpipe.runtime.running import RunningStep
from recpipe.train.setup import Job

AT = 3
"""The step that a fault strikes, counted from 0; the last step of the second epoch is uneven."""


class Nth:
    """True at the n-th call only."""

    def __init__(self, number: int) -> None:
        self._left = number + 1

    def __call__(self) -> bool:
        self._left -= 1
        return self._left == 0


@contextmanager
def scaled_row_gradient(job: Job) -> Iterator[None]:
    """One row's gradient, of one rank and one step, times 1.001."""
    now, plain = Nth(AT if job.groups.rank == 1 else -1), Window.send_gradients

    def send(self: Window, microbatch: int) -> None:
        if now():
            self.gradient_UD[0] *= 1.001
        plain(self, microbatch)

    with patch.object(Window, "send_gradients", send):
        yield


@contextmanager
def scaled_small_gradient(job: Job) -> Iterator[None]:
    """The same of the row whose gradient is smallest: its squares are near 1e-12 themselves."""
    now, plain = Nth(AT if job.groups.rank == 1 else -1), Window.send_gradients

    def send(self: Window, microbatch: int) -> None:
        if now():
            sizes = self.gradient_UD.square().sum(1)
            self.gradient_UD[sizes.where(sizes > 0, sizes.max()).argmin()] *= 1.001
        plain(self, microbatch)

    with patch.object(Window, "send_gradients", send):
        yield


@contextmanager
def skipped_reduction(job: Job) -> Iterator[None]:
    """Rank 1 goes on with its own gradients of one step; rank 0 has the sum."""
    reducers, now = list(job.trainer.updates._reducers.values()), Nth(AT)
    own: dict[int, torch.Tensor] = {}

    def begin(reducer: Any) -> None:
        start, finish = reducer._start, reducer.finish

        def keep(bucket: Any) -> None:
            own[id(bucket)] = bucket.flat.clone()
            start(bucket)

        def restore() -> None:
            finish()
            if job.groups.rank == 1 and now():
                for bucket in reducer._buckets:
                    bucket.flat.copy_(own[id(bucket)])

        reducer._start, reducer.finish = keep, restore

    for reducer in reducers:
        begin(reducer)
    yield


@contextmanager
def swapped_rows(job: Job) -> Iterator[None]:
    """Two rows of a table change places once."""
    now, plain = Nth(AT if job.groups.rank == 0 else -1), Window.lookup

    def lookup(self: Window) -> None:
        if now():
            weight = self._store.weights[0]
            weight[[0, 1]] = weight[[1, 0]]
        plain(self)

    with patch.object(Window, "lookup", lookup):
        yield


@contextmanager
def swapped_in_message(job: Job) -> Iterator[None]:
    """Two received rows change places on one rank in one step; the tables stay right."""
    now, plain = Nth(AT if job.groups.rank == 1 else -1), Window.rows

    def rows(self: Window, microbatch: int) -> torch.Tensor:
        found = plain(self, microbatch)
        if now():
            found[[0, 1]] = found[[1, 0]]
        return found

    with patch.object(Window, "rows", rows):
        yield


@contextmanager
def late_write_back(job: Job) -> Iterator[None]:
    """The update of one step waits until the next has looked its rows up, on both ranks."""
    update, lookup, now = TablesStep.update, TablesStep.lookup, Nth(AT)
    waiting: list[Callable[[], None]] = []

    def late(self: TablesStep, step: int) -> None:
        if now():
            waiting.append(partial(update, self, step))
        else:
            update(self, step)

    def look_up_first(self: TablesStep, lr: float = 0.0) -> None:
        lookup(self, lr)
        while waiting:
            waiting.pop()()

    with patch.object(TablesStep, "update", late), patch.object(TablesStep, "lookup", look_up_first):
        yield


@contextmanager
def lost_deferred_update(job: Job) -> Iterator[None]:
    """The deferred gradients of one step arrive and are forgotten."""
    now, plain = Nth(AT), Window._apply

    def settle(self: ShardedTables) -> None:
        if self.deferred is not None and now():
            with patch.object(Window, "_apply", lambda *_: None):
                self.deferred.update()
            self.deferred = None
        original(self)

    original = ShardedTables.settle
    assert plain is Window._apply
    with patch.object(ShardedTables, "settle", settle):
        yield


@contextmanager
def gradient_counted_twice(job: Job) -> Iterator[None]:
    """One row's gradient is added twice by its owner."""
    now, plain = Nth(AT if job.groups.rank == 0 else -1), Window._sum_class

    def twice(numbers: list[torch.Tensor], blocks: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        if now():
            numbers, blocks = [*numbers, numbers[0][:1]], [*blocks, blocks[0][:1]]
        return plain(numbers, blocks)

    with patch.object(Window, "_sum_class", staticmethod(twice)):
        yield


@contextmanager
def stale_prefetched_row(job: Job) -> Iterator[None]:
    """A row that the step before touches travels ahead of its update, once."""
    now, plain = Nth(AT if job.groups.rank == 0 else -1), TouchedRows.untouched

    def untouched(self: TouchedRows, *given: torch.Tensor) -> torch.Tensor:
        found = plain(self, *given)
        if now():
            found[(~found).nonzero()[0]] = True
        return found

    with patch.object(TouchedRows, "untouched", untouched):
        yield


@contextmanager
def wrong_divisor(job: Job) -> Iterator[None]:
    """The loss of the uneven last step is divided by the rows of a full one."""
    full = job.cfg.batch_size * job.mesh.replicas
    with patch.object(RunningStep, "global_rows", property(lambda self: full)):
        yield


@contextmanager
def wrong_rate_once(job: Job) -> Iterator[None]:
    """One update of the tables at 1.0001 of its learning rate."""
    now, plain = Nth(AT), Window.update

    def update(self: Window, lr: float, step: int) -> None:
        plain(self, lr * 1.0001 if now() else lr, step)

    with patch.object(Window, "update", update):
        yield


@contextmanager
def foreign_dropout(job: Job) -> Iterator[None]:
    """Dropout masks of one rank go by its own row numbers, not by the global ones."""
    plain = RunningStep.span

    def span(self: RunningStep, rank: int, microbatch: int) -> Any:
        found = plain(self, rank, microbatch)
        return type(found)(found.first_row - 1, found.num_rows) if job.groups.rank == 1 else found

    with patch.object(RunningStep, "span", span):
        yield


FAULTS: dict[str, tuple[Callable[[Job], Any], str, dict[str, Any]]] = {
    "one row gradient times 1.001": (scaled_row_gradient, "row_state", {}),
    "one row gradient times 1.001, plain rule": (scaled_row_gradient, "rows", {"optimizer__table__name": "sgd"}),
    "one row gradient times 1.001, Adam": (scaled_row_gradient, "row_state", {"optimizer__table__name": "adam"}),
    "the smallest row gradient times 1.001": (scaled_small_gradient, "row_state", {}),
    "a skipped reduction on one rank": (skipped_reduction, "dense_weights", {}),
    "two rows swapped in a table": (swapped_rows, "rows", {}),
    "two rows swapped in a message": (swapped_in_message, "rows", {}),
    "one late write-back": (late_write_back, "rows", {}),
    "one lost deferred update": (lost_deferred_update, "rows", {"schedule__embedding": "spread"}),
    "a gradient counted twice": (gradient_counted_twice, "row_state", {}),
    "a stale prefetched row": (stale_prefetched_row, "rows", {}),
    "a wrong divisor in the uneven last step": (wrong_divisor, "loss", {}),
    "one update at 1.0001 of its rate": (wrong_rate_once, "rows", {}),
    "a dropout mask of other rows": (foreign_dropout, "loss", {"model__dropout": 0.3}),
}
