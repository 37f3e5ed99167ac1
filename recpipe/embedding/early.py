"""Rows of a step that the step before does not touch may travel before that step's update: early, and still exact.

Only an owner knows what all consumers touch. So owners mark the pieces asked of them for step t+1 that nobody asked for
in step t, and tell each consumer its marks: one byte a piece, in the order in which it asked. Marked pieces then travel
in one message under step t; the others follow after its update, by microbatch as always. Replicated rows never travel
and are never early: a rank does not know which of them other ranks touch.

Suffixes as in `requests`; Q pieces asked of an owner, T pieces of one message.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recpipe.embedding.lanes import Lanes, PendingMessage
from recpipe.embedding.marks import MARKED, Marks
from recpipe.embedding.requests import Requests
from recpipe.embedding.rowmap import RowMap
from recpipe.embedding.store import RowStore

EARLY = MARKED


class TouchedRows:
    """A flag for each row of a store: whether a step touches it. Kept to save making it each step."""

    def __init__(self, store: RowStore) -> None:
        self._flags = [torch.zeros(weight.shape[0], dtype=torch.bool) for weight in store.weights]
        self._replicated = [piece.replicated for piece in store.rowmap.classes]

    def untouched(
        self, rows_Q: torch.Tensor, class_Q: torch.Tensor, others_Q: torch.Tensor, other_class_Q: torch.Tensor
    ) -> torch.Tensor:
        """Bool of Q: rows (of their class) that are not among the others, those of another step, and not replicated."""
        if len(self._flags) == 1 and not self._replicated[0]:
            return self._of_class(0, rows_Q, others_Q)
        out_Q = torch.zeros(rows_Q.numel(), dtype=torch.bool)
        for k, replicated in enumerate(self._replicated):
            if not replicated:
                mine = class_Q == k
                out_Q[mine] = self._of_class(k, rows_Q[mine], others_Q[other_class_Q == k])
        return out_Q

    def _of_class(self, piece_class: int, rows_Q: torch.Tensor, others_Q: torch.Tensor) -> torch.Tensor:
        flags, touched = self._flags[piece_class], others_Q.long()
        flags[touched] = True
        out_Q = ~flags[rows_Q.long()]
        flags[touched] = False
        return out_Q


class EarlyRows:
    """The row messages of one window some of whose rows travel early.

    Args:
        store: this rank's rows.
        lanes: communication.
        requests: what this rank asks for, as consumer.
        theirs_WMKM, numbers_Q: what is asked of it, as owner, and which rows.
        rows_UD: where received rows go.
        largest: elements that no message from one rank to another exceeds.
    """

    def __init__(
        self,
        store: RowStore,
        lanes: Lanes,
        requests: Requests,
        theirs_WMKM: torch.Tensor,
        numbers_Q: torch.Tensor,
        rows_UD: torch.Tensor,
        largest: int,
    ) -> None:
        self._store, self._lanes, self._requests = store, lanes, requests
        self._map: RowMap = store.rowmap
        self._theirs_WMKM, self._numbers_Q, self.rows_UD = theirs_WMKM, numbers_Q, rows_UD
        self._largest = largest
        self._pending: dict[int, PendingMessage] = {}
        self._outgoing: dict[int, torch.Tensor] = {}

    def tell(self, untouched_Q: torch.Tensor) -> None:
        """Starts to tell consumers which of their rows are early."""
        self._marks = Marks(self._lanes, self._requests, self._theirs_WMKM, untouched_Q, by_last=False)

    def gather(self, numbers: Sequence[int]) -> None:
        """Copies the rows of these messages out of the tables, as they are now."""
        for number in numbers:
            pieces_T, counts_X = self._marks.owner.message(number)
            self._outgoing[number] = self._store.gather(self._numbers_Q[pieces_T], counts_X, self.rows_UD.dtype)

    def send(self, number: int) -> None:
        """Starts a message whose rows were gathered."""
        sends, receives = (self._map.elements(end.message(number)[1]) for end in (self._marks.owner, self._marks.consumer))
        self._pending[number] = self._lanes.rows.all_to_all(self._outgoing.pop(number), sends, receives, largest=self._largest)

    def land(self, number: int) -> None:
        """Waits for a message and puts its rows in their places."""
        received = self._pending.pop(number).wait()
        rows_T, counts_X = self._marks.rows(number)
        if self._map.whole_rows:
            self.rows_UD[rows_T] = received.view(-1, self._map.dim)
        else:
            self._map.place_columns(self.rows_UD, received, rows_T, counts_X)
