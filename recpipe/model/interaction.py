"""The dot interaction of DLRM: products of all pairs of a row's vectors.

Its own backward: the gradient of the F x F products is rebuilt as one symmetric matrix by a gather, and one batched product
with the vectors gives the rest. Autograd through a triangle index would scatter instead, which takes longer than the GEMMs.
"""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.join import join_padded, padded_width


def pair_positions(num_vectors: int) -> torch.Tensor:
    """Position of each pair ``j < i`` in a flat F x F matrix, int64 ``[P]``, P = F (F - 1) / 2."""
    triangle_2P = torch.tril_indices(num_vectors, num_vectors, offset=-1)
    return triangle_2P[0] * num_vectors + triangle_2P[1]


def mirror_positions(num_vectors: int) -> torch.Tensor:
    """For each cell of a flat F x F matrix its pair, int64 ``[F * F]``; P on the diagonal, where there is none."""
    positions_P = pair_positions(num_vectors)
    pairs_P = torch.arange(len(positions_P))
    mirror_FF = torch.full((num_vectors, num_vectors), len(positions_P))
    mirror_FF.view(-1)[positions_P] = pairs_P
    mirror_FF = torch.minimum(mirror_FF, mirror_FF.t())
    return mirror_FF.reshape(-1)


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BFD, pairs_P, mirror_Q):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x_BFD, mirror_Q)
        return torch.bmm(x_BFD, x_BFD.transpose(1, 2)).flatten(1).index_select(1, pairs_P)

    @staticmethod
    def backward(ctx, grad_BP):  # type: ignore[no-untyped-def]
        x_BFD, mirror_Q = ctx.saved_tensors
        num_rows, num_vectors, _ = x_BFD.shape
        padded = torch.cat([grad_BP, grad_BP.new_zeros(num_rows, 1)], dim=1)
        symmetric_BFF = padded.index_select(1, mirror_Q).view(num_rows, num_vectors, num_vectors)
        return torch.bmm(symmetric_BFF, x_BFD), None, None


def pair_dots(x_BFD: torch.Tensor, pairs_P: torch.Tensor, mirror_Q: torch.Tensor) -> torch.Tensor:
    """Dot products of all pairs of vectors of a row: ``[B, F, D] -> [B, F (F - 1) / 2]``, pair (i, j < i) in row order."""
    dots_BP: torch.Tensor = _PairDots.apply(x_BFD, pairs_P, mirror_Q)  # type: ignore[no-untyped-call]
    return dots_BP


class DotInteraction(Block):
    """Bottom tower's output and the pair products side by side: ``[B, D], [B, F, D] -> [B, padded D + P]``."""

    pairs_P: torch.Tensor
    mirror_Q: torch.Tensor

    def __init__(self, name: str, dense_name: str, num_features: int, dim: int) -> None:
        super().__init__(name, (dense_name, "rows_BFD"), (name + "_BK",))
        self.num_vectors = num_features + 1
        num_pairs = self.num_vectors * num_features // 2
        self.num_outputs = padded_width(dim + num_pairs)
        self.register_buffer("pairs_P", torch.empty(num_pairs, dtype=torch.int64), persistent=False)
        self.register_buffer("mirror_Q", torch.empty(self.num_vectors**2, dtype=torch.int64), persistent=False)

    def reset(self, generator: torch.Generator) -> None:
        self.pairs_P.copy_(pair_positions(self.num_vectors))
        self.mirror_Q.copy_(mirror_positions(self.num_vectors))

    def forward(self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        x_BFD = torch.cat([dense_BD.unsqueeze(1), rows_BFD], dim=1)
        return join_padded([dense_BD, pair_dots(x_BFD, self.pairs_P, self.mirror_Q)])
