"""The second-order term of a factorization machine: products of all pairs of a row's vectors, summed."""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext


class _PairSum(torch.autograd.Function):
    """Half of (square of the sum - sum of the squares); its gradient is (sum - x), with no temporary of squares."""

    @staticmethod
    def forward(ctx, x_BFD):  # type: ignore[no-untyped-def]
        sum_BD = x_BFD.sum(dim=1)
        ctx.save_for_backward(x_BFD, sum_BD)
        flat_BK = x_BFD.flatten(1)
        return 0.5 * (torch.linalg.vecdot(sum_BD, sum_BD) - torch.linalg.vecdot(flat_BK, flat_BK))

    @staticmethod
    def backward(ctx, grad_B):  # type: ignore[no-untyped-def]
        x_BFD, sum_BD = ctx.saved_tensors
        return (sum_BD.unsqueeze(1) - x_BFD).mul_(grad_B.view(-1, 1, 1))


def pair_sum(x_BFD: torch.Tensor) -> torch.Tensor:
    """Sum over pairs i < j of the dot products of vectors: ``[B, F, D] -> [B]``."""
    sum_B: torch.Tensor = _PairSum.apply(x_BFD)  # type: ignore[no-untyped-call]
    return sum_B


class FmBlock(Block):
    """``vectors_BFD -> fm_B``."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ("vectors_BFD",), (name + "_B",))

    def forward(self, vectors_BFD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return pair_sum(vectors_BFD)
