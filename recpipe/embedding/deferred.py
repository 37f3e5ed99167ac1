"""Gradients of rows that the next step does not touch may travel and be applied under that step: deferred, and still exact.

The mirror of early rows. Only an owner knows what all consumers touch, so owners mark the pieces asked of them for step t
that nobody asks for in step t + 1, and tell each consumer its marks. Gradients of marked pieces travel in one message under
step t + 1, and their rows are updated before anybody looks up step t + 2. Replicated rows are never marked.

Suffixes as in `requests`; Q pieces asked of an owner, T pieces of one message.
"""

from __future__ import annotations

from functools import cached_property

import torch

from recpipe.embedding.ends import MARKED, Ends
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.requests import Requests

DEFERRED = MARKED


class DeferredGradients:
    """The gradient messages of one window some of whose gradients are deferred.

    Args:
        lanes: communication.
        requests: what this rank asks for, as consumer.
        theirs_WMKM: pieces asked of it, as owner.
        marked_Q: bool, which of those are deferred; consumers are told at once.
    """

    def __init__(self, lanes: Lanes, requests: Requests, theirs_WMKM: torch.Tensor, marked_Q: torch.Tensor) -> None:
        self._requests = requests
        flags_Q = marked_Q.to(torch.uint8)
        sizes, mine = (counts.sum((1, 2, 3)).tolist() for counts in (theirs_WMKM, requests.counts_WMKM))
        self._flags = lanes.ids.all_to_all(flags_Q, sizes, mine)
        self.owner = Ends(theirs_WMKM, flags_Q, by_last=True)

    @cached_property
    def consumer(self) -> Ends:
        """Waits for the owners' marks."""
        return Ends(self._requests.counts_WMKM, self._flags.wait(), by_last=True)

    def rows(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Unique row of each piece in message `number` of this consumer, and pieces of each (owner, class)."""
        pieces_T, counts_X = self.consumer.message(number)
        return self._requests.unique_in_asking_order_P[pieces_T], counts_X
