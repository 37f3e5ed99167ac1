"""Pieces of a window that travel apart from their microbatch: marked by their owner, who tells consumers which they are.

Only an owner knows what all consumers touch. Rows of step t + 1 that step t does not touch may travel under step t: early
(`early.py`). Gradients of rows of step t that step t + 1 does not touch may travel under step t + 1, and be applied before
anybody looks up step t + 2: deferred (`window.py`). Both are exact. A mark is a byte a piece, in the order in which the
consumer asked. Replicated rows never travel and are never marked: a rank does not know which of them other ranks touch.

Suffixes as in `requests`; Q pieces asked of an owner, T pieces of one message.
"""

from __future__ import annotations

from functools import cached_property

import torch

from recpipe.embedding.lanes import Lanes
from recpipe.embedding.requests import Requests

MARKED = -1
"""Number of the message that carries the marked pieces, beside those of the microbatches."""


class Ends:
    """Where pieces lie in the messages between this rank and every other: one view as owner, one as consumer.

    Args:
        counts_WMKM: pieces by (peer, first, class, last); they lie in this order.
        marked: uint8 of all pieces.
        by_last: messages by last use (gradients), not by first (rows).
    """

    def __init__(self, counts_WMKM: torch.Tensor, marked: torch.Tensor, by_last: bool) -> None:
        num_peers, num_micro, num_classes, _ = counts_WMKM.shape
        cell = torch.repeat_interleave(counts_WMKM.sum(3).flatten() if not by_last else counts_WMKM.flatten())
        if by_last:
            last, cell = cell % num_micro, cell // num_micro
        peer_class = (cell // (num_micro * num_classes)) * num_classes + cell % num_classes
        number = torch.where(marked.bool(), MARKED, last if by_last else (cell // num_classes) % num_micro)
        place = (number - MARKED) * num_peers * num_classes + peer_class
        counts = torch.bincount(place, minlength=(num_micro + 1) * num_peers * num_classes)
        self._counts = counts.view(num_micro + 1, -1)
        self._runs = [(number == k).nonzero().flatten() for k in range(MARKED, num_micro)]
        if num_classes > 1:
            self._runs = [run[torch.argsort(peer_class[run], stable=True)] for run in self._runs]

    def message(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pieces of message `number` in its order, (peer, class)-major, and how many there are of each (peer, class)."""
        return self._runs[number - MARKED], self._counts[number - MARKED]


class Marks:
    """The messages of one window, some of whose pieces are marked; consumers are told at once.

    Args:
        lanes: communication.
        requests: what this rank asks for, as consumer.
        theirs_WMKM: pieces asked of it, as owner.
        marked_Q: bool, which of those are marked.
        by_last: as in `Ends`.
    """

    def __init__(
        self, lanes: Lanes, requests: Requests, theirs_WMKM: torch.Tensor, marked_Q: torch.Tensor, by_last: bool
    ) -> None:
        self._requests, self._by_last = requests, by_last
        flags_Q = marked_Q.to(torch.uint8)
        sizes, mine = (counts.sum((1, 2, 3)).tolist() for counts in (theirs_WMKM, requests.counts_WMKM))
        self._flags = lanes.ids.all_to_all(flags_Q, sizes, mine)
        self.owner = Ends(theirs_WMKM, flags_Q, by_last)

    @cached_property
    def consumer(self) -> Ends:
        """Waits for the owners' marks."""
        return Ends(self._requests.counts_WMKM, self._flags.wait(), self._by_last)

    def rows(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Unique row of each piece in message `number` of this consumer, and pieces of each (owner, class)."""
        pieces_T, counts_X = self.consumer.message(number)
        return self._requests.unique_in_asking_order_P[pieces_T], counts_X
