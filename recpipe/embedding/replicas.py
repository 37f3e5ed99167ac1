"""Replicated tables: every rank holds the rows, so only their summed gradient crosses ranks, as one dense reduction."""

from __future__ import annotations

import torch

from recpipe.embedding.lanes import LaneLike


def sum_replicated(
    weight_RD: torch.Tensor, rows_U: torch.Tensor, grad_UD: torch.Tensor, lane: LaneLike
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums the gradients of replicated rows over all ranks.

    A count of touching ranks travels as one more column: rows that nobody touched must keep weight and state (L2, Adam).

    Args:
        weight_RD: this rank's copy, for the shape.
        rows_U, grad_UD: rows that this rank touched and their gradients.

    Returns:
        Rows that any rank touched, and their gradients; the same on every rank.
    """
    if lane.world == 1:
        return rows_U, grad_UD
    dense = weight_RD.new_zeros(weight_RD.shape[0], weight_RD.shape[1] + 1)
    dense[rows_U, :-1] = grad_UD
    dense[rows_U, -1] = 1
    dense = lane.all_reduce(dense).wait()
    touched_U = dense[:, -1].nonzero().squeeze(1)
    return touched_U, dense[touched_U, :-1]
