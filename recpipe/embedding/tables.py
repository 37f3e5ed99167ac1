"""All embedding tables of a model, sharded: opens a step over a list of microbatches and gives pooled rows.

Tables of the window exchange and of the pooled exchange live side by side; a step drives both with the same verbs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from recpipe.batch import Batch
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.layout import TableLayout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.pooled import PooledExchange, PooledStep
from recpipe.embedding.pooling import Bags
from recpipe.embedding.rowmap import RowMap
from recpipe.embedding.state import Entry, table_entries
from recpipe.embedding.store import InitRows, RowStore
from recpipe.embedding.window import Window, WindowExchange


class ShardedTables:
    """The tables of one model on this rank.

    Args:
        layouts: one a feature, in feature order, all of one dim.
        optimizer: the rule of every table.
        init_rows: (table index, row_start, row_stop) -> rows x dim.
        lanes: communication.
        dtype: of rows, state and gradients.
        group: process group for TorchRec, where a table uses the pooled exchange.
        wire_dtype: of rows and row gradients of the window exchange on their way; None: `dtype`.
    """

    def __init__(
        self,
        layouts: Sequence[TableLayout],
        optimizer: RowOptimizer,
        init_rows: InitRows,
        lanes: Lanes,
        dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        self.layouts = tuple(layouts)
        self.dtype = dtype
        self.dim = layouts[0].spec.dim
        self.window_features = [i for i, layout in enumerate(layouts) if layout.exchange == "window"]
        self.pooled_features = [i for i, layout in enumerate(layouts) if layout.exchange == "pooled"]
        self.window: WindowExchange | None = None
        self.pooled: PooledExchange | None = None
        if self.window_features:
            chosen = self.window_features
            rowmap = RowMap([layouts[i] for i in chosen], lanes.ids.rank, lanes.ids.world)
            store = RowStore(rowmap, optimizer, lambda t, start, stop: init_rows(chosen[t], start, stop), dtype)
            self.window = WindowExchange(store, lanes, wire_dtype)
        if self.pooled_features:
            picked = self.pooled_features
            self.pooled = PooledExchange(
                [layouts[i] for i in picked], optimizer, lambda t, a, b: init_rows(picked[t], a, b), lanes, dtype, group
            )
        self.deferred: Deferred | None = None
        self._mean = torch.tensor([layout.spec.pooling == "mean" for layout in layouts])

    def open(
        self, microbatches: Sequence[Batch], backward_position: Sequence[int] | None = None, header: Sequence[int] = ()
    ) -> TablesStep:
        """Starts a step: dedup and announcement.

        Args:
            microbatches: this rank's rows of the step; empty batches where it has none. Every rank gives as many.
            backward_position: place of each microbatch in backward order; forward order if None.
            header: small ints told to every rank; read them from `TablesStep.headers` after `request`.
        """
        return TablesStep(self, microbatches, backward_position or range(len(microbatches)), header)

    def send_deferred(self) -> None:
        """Starts the deferred gradients of the last step on their way, if there are any."""
        if self.deferred is not None:
            self.deferred.send()

    def settle(self) -> None:
        """Brings every row up to date: makes the deferred updates of the last step, if there are any. Collective."""
        if self.deferred is not None:
            self.deferred.update()
        self.deferred = None

    def entries(self) -> dict[str, Entry]:
        """Checkpoint entries of all tables: canonical names, whatever the plan and the exchange. Settles: collective."""
        self.settle()
        entries = {} if self.window is None else table_entries(self.window.store)
        return entries if self.pooled is None else entries | self.pooled.entries()

    def num_bytes(self) -> int:
        """Bytes of weights and optimizer state on this rank."""
        window = self.window.store.num_bytes() if self.window else 0
        return window + (self.pooled.num_bytes() if self.pooled else 0)

    def bags(self, batch: Batch, features: Sequence[int]) -> Bags:
        """How the lookups of the chosen features form bags."""
        mean = self._mean[list(features)]
        lengths_FB = batch.lengths_FB if batch.num_rows else torch.zeros(0, dtype=torch.int32)
        return Bags.make(lengths_FB, len(features), mean if mean.any() else None, batch.weights_N, batch.one_hot)


class TablesStep:
    """One step of all tables; the verbs of `Window`, over both exchanges."""

    def __init__(
        self,
        tables: ShardedTables,
        microbatches: Sequence[Batch],
        backward_position: Sequence[int],
        header: Sequence[int],
    ) -> None:
        self._tables = tables
        self._sizes = [batch.num_rows for batch in microbatches]
        self._window: Window | None = None
        self._pooled: PooledStep | None = None
        if tables.window is not None:
            chosen = [batch.features(tables.window_features) for batch in microbatches]
            self._bags = [tables.bags(batch, tables.window_features) for batch in chosen]
            keys = [_keys(batch, tables.window.rowmap.bases) for batch in chosen]
            self._window = tables.window.open(keys, backward_position, header)
        if tables.pooled is not None:
            picked = [batch.features(tables.pooled_features) for batch in microbatches]
            picked_bags = [tables.bags(batch, tables.pooled_features) for batch in picked]
            self._pooled = tables.pooled.open(picked, picked_bags, header)

    @property
    def headers(self) -> torch.Tensor:
        """What every rank said when it opened the step: ranks x header, after `request`."""
        step = self._window or self._pooled
        assert step is not None
        return step.headers

    def request(self) -> None:
        """Sends row numbers to owners."""
        for step in (self._window, self._pooled):
            if step is not None:
                step.request()

    def tell_early(self, previous: TablesStep, defer: bool = False) -> None:
        """Finds the rows that the step before, still running, does not touch; the pooled exchange has none.

        Args:
            defer: finds also those of `previous` that this step does not touch: their gradients are deferred.
        """
        if self._window is not None:
            assert previous._window is not None
            self._window.tell_early(previous._window, defer)

    def gather_early(self) -> None:
        """Gathers the rows that `tell_early` found."""
        if self._window is not None:
            self._window.gather_early()

    def send_early(self) -> None:
        """Starts those rows on their way."""
        if self._window is not None:
            self._window.send_early()

    def lookup(self, lr: float = 0.0) -> None:
        """Gathers rows at the owners; from here on the step's rows are frozen.

        Args:
            lr: learning rate of the step's update (FBGEMM's kernels want it with the lookup).
        """
        self._lr = lr
        if self._window is not None:
            self._window.lookup()
        if self._pooled is not None:
            self._pooled.lookup(lr)

    def send_rows(self, microbatch: int) -> None:
        """Starts rows on their way to the consumers of `microbatch`."""
        if self._window is not None:
            self._window.send_rows(microbatch)

    def pool(self, microbatch: int) -> torch.Tensor:
        """Waits for the rows of `microbatch` and pools them: B x F x dim, without autograd history."""
        pooled = None if self._pooled is None else self._pooled.pool(microbatch)
        if self._window is None:
            assert pooled is not None
            return pooled
        rows_UD = self._window.rows(microbatch)
        windowed = self._bags[microbatch].pool(rows_UD, self._window.inverse_N[microbatch])
        if pooled is None:
            return windowed
        out = windowed.new_empty(self._sizes[microbatch], len(self._tables.layouts), self._tables.dim)
        out[:, self._tables.window_features] = windowed
        out[:, self._tables.pooled_features] = pooled
        return out

    def add_gradient(self, microbatch: int, grad_BFD: torch.Tensor) -> None:
        """Adds the gradient of what `pool(microbatch)` gave."""
        mixed = self._window is not None and self._pooled is not None
        if self._window is not None:
            grad = grad_BFD[:, self._tables.window_features] if mixed else grad_BFD
            self._bags[microbatch].unpool(grad, self._window.inverse_N[microbatch], self._window.gradient_UD)
        if self._pooled is not None:
            self._pooled.add_gradient(microbatch, grad_BFD[:, self._tables.pooled_features] if mixed else grad_BFD)

    def send_gradients(self, microbatch: int) -> None:
        """Starts the gradients of rows last used by `microbatch` on their way to owners."""
        if self._window is not None:
            self._window.send_gradients(microbatch)

    def update(self, step: int) -> None:
        """One exact update of every touched row but those whose gradients are deferred; `step` counts updates from 1."""
        if self._window is not None:
            self._window.update(self._lr, step)
            if self._window.defers:
                self._tables.deferred = Deferred(self._window, self._lr, step)
        if self._pooled is not None:
            self._pooled.update()


class Deferred:
    """What a step has left to do: gradients to send, rows to update.

    Args:
        window: of the step.
        lr, step: of its update.
    """

    def __init__(self, window: Window, lr: float, step: int) -> None:
        self._window, self._lr, self._step = window, lr, step
        self._is_sent = False

    def send(self) -> None:
        """Starts the gradients on their way, once."""
        if not self._is_sent:
            self._window.send_deferred()
        self._is_sent = True

    def update(self) -> None:
        """Updates the rows; sends first what has not been."""
        self.send()
        self._window.update_deferred(self._lr, self._step)


def _keys(batch: Batch, bases: torch.Tensor) -> torch.Tensor:
    """Ids of all features in one key space."""
    if batch.num_rows == 0:
        return torch.empty(0, dtype=torch.int64)
    per_feature = batch.lengths_FB.view(len(bases), -1)
    if batch.one_hot:
        return (batch.ids_N.view(len(bases), -1) + bases.unsqueeze(1)).flatten()
    return batch.ids_N + bases.repeat_interleave(per_feature.sum(1))
