"""Which pieces of a window travel in which message, when some are marked to travel apart from their microbatch."""

from __future__ import annotations

import torch

MARKED = -1
"""Number of the message that carries the marked pieces, beside those of the microbatches."""


class Ends:
    """Where pieces lie in the messages between this rank and every other: one view as owner, one as consumer.

    Args:
        counts_WMKM: pieces by (peer, first, class, last); they lie in this order.
        marked: uint8 of all pieces.
        by_last: messages by last use (gradients), not by first (rows).
    """

    def __init__(self, counts_WMKM: torch.Tensor, marked: torch.Tensor, by_last: bool = False) -> None:
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
