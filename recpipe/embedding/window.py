"""The window exchange: one step's unique rows travel once, and come back as one summed gradient each.

Rows are frozen inside a step, so a row fetched for microbatch 0 is still right for microbatch 7: a microbatch brings only
rows that no earlier one brought. The verbs of a `Window`, in order:

    announce -> request -> lookup -> (send_rows m, rows m)* -> (gradient_UD, send_gradients m)* -> update

and, before `lookup`, to send ahead of time what the step before does not touch: tell_early -> gather_early -> send_early;
behind `update`, for gradients of rows that the step after does not touch: send_deferred -> update_deferred.
Each is one action of a schedule; the window knows no schedule. Every rank calls every verb, a rank without rows included.

Why not TorchRec's ShardedEmbeddingCollection: it knows no table-row-wise, no grid and no float64; its row-wise Adagrad
keeps one state a column shard (another trajectory than the unsharded one); and it looks rows up once a call, not once a
step. `tests/embedding/test_against_torchrec.py` holds this exchange against it where it does apply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property

import torch

from recpipe.embedding.announced import check_counts, check_own_counts, packed, unpacked
from recpipe.embedding.early import EARLY, EarlyRows, TouchedRows
from recpipe.embedding.lanes import Lanes, PendingMessage
from recpipe.embedding.marks import MARKED, Marks
from recpipe.embedding.replicas import sum_replicated
from recpipe.embedding.requests import Requests, make_requests, regroup
from recpipe.embedding.row_squares import RowSquares
from recpipe.embedding.store import RowStore


class WindowExchange:
    """Makes windows over one store.

    Args:
        store: the rows of this rank.
        lanes: communication; all ranks open windows in the same order.
        wire_dtype: of rows and row gradients on their way; None: that of the store. Tables and sums keep the store's.
    """

    def __init__(self, store: RowStore, lanes: Lanes, wire_dtype: torch.dtype | None = None) -> None:
        self.store = store
        self.wire_dtype = wire_dtype or store.weights[0].dtype
        self.rowmap = store.rowmap
        self.lanes = lanes
        self.row_squares = RowSquares(store.rowmap, lanes.gradients)
        self.touched = TouchedRows(store)
        largest = max(weight.shape[0] for weight in store.weights)
        self.row_number_dtype = torch.int32 if largest < 2**31 else torch.int64

    def open(self, keys_N: Sequence[torch.Tensor], backward_position: Sequence[int], header: Sequence[int]) -> Window:
        """Dedups a step's keys and starts the announcement.

        Args:
            keys_N: global keys of each microbatch (`RowMap.bases` + id).
            backward_position: place of each microbatch in backward order.
            header: small ints that every rank tells every other, see `Window.headers`.
        """
        return Window(self, make_requests(self.rowmap, keys_N, backward_position), backward_position, header)


class Window:
    """The rows of one step, from this rank's view as consumer and as owner.

    Suffixes as in `requests`; `theirs` is what other ranks (consumers, dimension 0) ask of this one.
    """

    def __init__(
        self, exchange: WindowExchange, requests: Requests, backward_position: Sequence[int], header: Sequence[int]
    ) -> None:
        self._exchange = exchange
        self._store, self._map, self._lanes = exchange.store, exchange.rowmap, exchange.lanes
        self._requests = requests
        self._backward_position = tuple(backward_position)
        self._header_size = len(header)
        self._row_messages: dict[int, PendingMessage] = {}
        self._waiting: deque[int] = deque()
        self._gradient_messages: list[tuple[int, PendingMessage]] = []
        self._order_P: torch.Tensor | None = None
        self._early: EarlyRows | None = None
        self._deferred: Marks | None = None
        self.headers = torch.empty(0)
        self._announce(header)

    @property
    def inverse_N(self) -> tuple[torch.Tensor, ...]:
        """For each microbatch: lookup -> row of `rows_UD`."""
        return self._requests.inverse_N

    @cached_property
    def gradient_UD(self) -> torch.Tensor:
        """Where the consumer sums the gradient of each unique row; zero at first."""
        return torch.zeros_like(self.rows_UD, dtype=self._store.weights[0].dtype)

    def _announce(self, header: Sequence[int]) -> None:
        counts_WX = self._requests.counts_WMKM.flatten(1)
        self._asked = self._requests.counts_WMKM.sum((1, 2, 3)).tolist()
        sums = [asked + sum(header) for asked in self._asked]
        head_WX = torch.tensor([[*header, packed(max(self._asked), one)] for one in sums], dtype=torch.int64)
        message = torch.cat([head_WX, counts_WX], dim=1)
        sizes = [message.shape[1]] * self._map.world
        self._announcement = self._lanes.ids.all_to_all(message.flatten(), sizes, sizes)

    def request(self) -> None:
        """Waits for the announcements (then `headers` is W x header) and starts to send row numbers to owners."""
        received = self._announcement.wait().view(self._map.world, -1)
        size = self._header_size
        self.headers, theirs_WX = received[:, :size], received[:, size + 1 :]
        asked, sums = zip(*map(unpacked, received[:, size].tolist()), strict=True)
        self._largest = max(asked) * max(piece.width for piece in self._map.classes)
        check_counts(self._map.rank, sums, self.headers, theirs_WX)
        self._theirs_WMKM = theirs_WX.reshape(self._requests.counts_WMKM.shape)
        theirs = self._theirs_WMKM.sum((1, 2, 3)).tolist()
        check_own_counts(self._map.rank, self._asked, self._requests.local_P.numel())
        numbers = self._requests.local_P.to(self._exchange.row_number_dtype)
        self._numbers = self._lanes.ids.all_to_all(numbers, self._asked, theirs)

    @cached_property
    def rows_UD(self) -> torch.Tensor:
        """The unique rows of the step, in the order in which they are first needed."""
        shape = self._requests.num_unique, self._map.dim
        return self._store.weights[0].new_empty(shape, dtype=self._exchange.wire_dtype)

    @cached_property
    def _owner_rows_Q(self) -> torch.Tensor:
        """Rows of this rank's tables that are asked for; waits for their numbers."""
        return self._numbers.wait()

    @property
    def _owner_class_Q(self) -> torch.Tensor:
        counts_X = self._theirs_WMKM.sum(3).flatten()
        return torch.repeat_interleave(counts_X) % len(self._map.classes)

    def tell_early(self, previous: Window, defer: bool = False) -> None:
        """Waits for the row numbers of both steps; starts to tell consumers which rows `previous` does not touch.

        Args:
            defer: tells them also which rows of `previous` this step does not touch: their gradients are deferred.
        """
        self._early = EarlyRows(
            self._store, self._lanes, self._requests, self._theirs_WMKM, self._owner_rows_Q, self.rows_UD, self._largest
        )
        mine, before = ((window._owner_rows_Q, window._owner_class_Q) for window in (self, previous))
        self._early.tell(self._exchange.touched.untouched(*mine, *before))
        if defer:
            marked_Q = self._exchange.touched.untouched(*before, *mine)
            previous._deferred = Marks(self._lanes, previous._requests, previous._theirs_WMKM, marked_Q, by_last=True)

    def gather_early(self) -> None:
        """Gathers the rows that `tell_early` found, while the step before may not have been updated."""
        assert self._early is not None
        self._early.gather([EARLY])

    def send_early(self) -> None:
        """Starts those rows on their way to their consumers."""
        assert self._early is not None
        self._early.send(EARLY)
        self._waiting.append(EARLY)

    def lookup(self) -> None:
        """Waits for row numbers and gathers the rows of every microbatch from this rank's tables, once."""
        if self._early is not None:
            self._early.gather(range(self._theirs_WMKM.shape[1]))
            return
        numbers_Q = self._owner_rows_Q
        by_micro = numbers_Q
        if self._theirs_WMKM.shape[1] > 1:
            by_micro = numbers_Q[regroup(self._theirs_WMKM, (1, 0, 2, 3))]
        counts_MWK = self._theirs_WMKM.sum(3).transpose(0, 1)
        runs = by_micro.split(counts_MWK.sum((1, 2)).tolist())
        counted, dtype = zip(runs, counts_MWK, strict=True), self._exchange.wire_dtype
        self._outgoing = [self._store.gather(run, counts_WK.flatten(), dtype) for run, counts_WK in counted]

    def send_rows(self, microbatch: int) -> None:
        """Starts the rows that `microbatch` is the first to need on their way from owners to consumers."""
        if self._early is not None:
            self._early.send(microbatch)
            self._waiting.append(microbatch)
            return
        sends = self._map.elements(self._theirs_WMKM[:, microbatch].sum(2))
        receives = self._map.elements(self._requests.counts_WMKM[:, microbatch].sum(2))
        out = None
        if self._map.whole_rows:
            start, stop = self._arrival_range(microbatch)
            out = self.rows_UD[start:stop].view(-1)
        message = self._outgoing[microbatch]
        self._row_messages[microbatch] = self._lanes.rows.all_to_all(message, sends, receives, out, self._largest)
        self._waiting.append(microbatch)

    def rows(self, microbatch: int) -> torch.Tensor:
        """Waits for the rows of microbatches up to this one; gives all unique rows, U x dim, of which these are there."""
        while self._waiting and self._waiting[0] <= microbatch:
            self._receive(self._waiting.popleft())
        return self.rows_UD

    def _receive(self, microbatch: int) -> None:
        if self._early is not None:
            self._early.land(microbatch)
            return
        received = self._row_messages.pop(microbatch).wait()
        if not self._map.whole_rows:
            self._land(microbatch, received)

    def _arrival_range(self, microbatch: int) -> tuple[int, int]:
        per_micro = self._requests.counts_WMKM.sum((0, 2, 3))
        start = int(per_micro[:microbatch].sum())
        return start, start + int(per_micro[microbatch])

    def _land(self, microbatch: int, received: torch.Tensor) -> None:
        """Puts column blocks of received rows in their place."""
        counts_X = self._requests.counts_WMKM[:, microbatch].sum(2).flatten()
        rows_P = self._requests.unique_P[slice(*self._arrival_range(microbatch))]
        self._map.place_columns(self.rows_UD, received, rows_P, counts_X)

    def send_gradients(self, microbatch: int) -> None:
        """Starts the gradients of rows that `microbatch` is the last to use (in backward order) on their way to owners.

        Those that are deferred stay for `send_deferred`.
        """
        last = self._backward_position[microbatch]
        if self._deferred is not None:
            self._send_chosen(last, self._deferred)
            return
        sends = self._map.elements(self._requests.counts_WMKM[:, :, :, last].sum(1))
        receives = self._map.elements(self._theirs_WMKM[:, :, :, last].sum(1))
        self._send_gradient_message(last, self._gradient_message(last), sends, receives)

    def send_deferred(self) -> None:
        """Starts the deferred gradients on their way."""
        assert self._deferred is not None
        self._send_chosen(MARKED, self._deferred)

    def _send_chosen(self, number: int, deferred: Marks) -> None:
        rows_T, counts_X = deferred.rows(number)
        message = self._columns_of(rows_T, counts_X.tolist())
        receives = self._map.elements(deferred.owner.message(number)[1])
        self._send_gradient_message(number, message, self._map.elements(counts_X), receives)

    def _send_gradient_message(self, number: int, message: torch.Tensor, sends: list[int], receives: list[int]) -> None:
        message = message.to(self._exchange.wire_dtype)
        pending = self._lanes.gradients.all_to_all(message, sends, receives, largest=self._largest)
        self._gradient_messages.append((number, pending))

    def _gradient_message(self, last: int) -> torch.Tensor:
        """Gradients of pieces last used at `last`, (owner, class, first)-major."""
        counts_WMKM = self._requests.counts_WMKM
        if counts_WMKM.shape[1] == 1 and self._map.whole_rows:
            return self.gradient_UD.view(-1)
        if self._order_P is None:
            # Arrival order is (first, owner, class, last); gradients leave as (last, owner, class, first).
            self._order_P = regroup(counts_WMKM.transpose(0, 1), (3, 1, 2, 0))
        per_last = counts_WMKM.sum((0, 1, 2))
        start = int(per_last[:last].sum())
        pieces = self._requests.unique_P[self._order_P[start : start + int(per_last[last])]]
        return self._columns_of(pieces, counts_WMKM[:, :, :, last].sum(1).flatten().tolist())

    def _columns_of(self, rows_P: torch.Tensor, counts_X: list[int]) -> torch.Tensor:
        """Gradients of pieces as one flat message; `counts_X` says how many there are of each (owner, class)."""
        if len(self._map.classes) == 1:
            return self.gradient_UD.index_select(0, rows_P).view(-1)
        parts = []
        for cell, run in enumerate(rows_P.split(counts_X)):
            piece = self._map.classes[cell % len(self._map.classes)]
            block = self.gradient_UD.index_select(0, run)
            parts.append(block[:, piece.col_start : piece.col_start + piece.width].reshape(-1))
        return torch.cat(parts)

    def update(self, lr: float, step: int) -> None:
        """Waits for all gradients, sums them over consumers and updates every touched row once.

        Rows whose gradient is deferred are left to `update_deferred`.

        Args:
            lr: learning rate of the step.
            step: updates done including this one, from 1.
        """
        touched = [self._sum_class(*parts) for parts in self._received_gradients()]
        touched = [
            sum_replicated(self._store.weights[k], *touched[k], self._lanes.gradients) if piece.replicated else touched[k]
            for k, piece in enumerate(self._map.classes)
        ]
        self._apply(touched, lr, step)

    def update_deferred(self, lr: float, step: int) -> None:
        """The same for the deferred gradients, which `send_deferred` has sent; `lr` and `step` are those of `update`."""
        self._apply([self._sum_class(*parts) for parts in self._received_gradients()], lr, step)

    @property
    def defers(self) -> bool:
        """Whether some of its gradients are deferred, here or on another rank."""
        return self._deferred is not None

    def _apply(self, touched: list[tuple[torch.Tensor, torch.Tensor]], lr: float, step: int) -> None:
        """One update of the unique rows of each class."""
        for k, (rows_U, grad_UD) in enumerate(touched):
            self._store.optimizer.regularize(self._store.weights[k], rows_U, grad_UD)
        squares: Sequence[torch.Tensor | None] = [None] * len(touched)
        if self._store.optimizer.needs_row_squares:
            squares = self._exchange.row_squares.mean_squares(touched)
        for k, (rows_U, grad_UD) in enumerate(touched):
            self._store.update(k, rows_U, grad_UD, lr, step, squares[k])

    def _received_gradients(self) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """For each class, runs of row numbers and of gradients of the messages since the last call, in a fixed order."""
        num_classes = len(self._map.classes)
        out: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in range(num_classes)]
        for number, message in self._gradient_messages:
            received, position = message.wait().to(self._store.weights[0].dtype), 0
            for cell, numbers in enumerate(self._numbers_of(number)):
                width = self._map.classes[cell % num_classes].width
                block = received[position : position + numbers.numel() * width].view(-1, width)
                out[cell % num_classes][0].append(numbers)
                out[cell % num_classes][1].append(block)
                position += block.numel()
        self._gradient_messages.clear()
        return out

    def _numbers_of(self, number: int) -> Sequence[torch.Tensor]:
        """Row numbers that the gradients of a message belong to: a run for each (consumer, class)."""
        if self._deferred is not None:
            pieces_T, counts_X = self._deferred.owner.message(number)
            return self._owner_rows_Q[pieces_T].split(counts_X.tolist())
        cells = self._map.world * len(self._map.classes)
        return self._runs_by_last[number * cells : (number + 1) * cells]

    @cached_property
    def _runs_by_last(self) -> Sequence[torch.Tensor]:
        """Row numbers asked of this rank, a run for each (last, consumer, class)."""
        num_micro, num_classes = self._theirs_WMKM.shape[1], len(self._map.classes)
        numbers_Q = self._owner_rows_Q
        if num_micro > 1 or num_classes > 1:
            numbers_Q = numbers_Q[regroup(self._theirs_WMKM, (3, 0, 2, 1))]
        return numbers_Q.split(self._theirs_WMKM.sum(1).permute(2, 0, 1).flatten().tolist())

    @staticmethod
    def _sum_class(numbers: list[torch.Tensor], blocks: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Unique rows and their summed gradients."""
        rows_U, inverse = torch.unique(torch.cat(numbers).long(), return_inverse=True)
        grad_UD = blocks[0].new_zeros(rows_U.numel(), blocks[0].shape[1])
        return rows_U, grad_UD.index_add_(0, inverse, torch.cat(blocks))
