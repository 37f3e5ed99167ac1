"""The dot interaction of DLRM: products of all pairs of a row's vectors.

Its own backward: the gradient of the F x F products is rebuilt as one symmetric matrix by a gather, and one batched
product with the vectors gives the rest. Autograd through a triangle index would scatter instead.
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
    pair_FF = torch.full((num_vectors, num_vectors), len(positions_P))
    pair_FF.view(-1)[positions_P] = torch.arange(len(positions_P))
    return torch.minimum(pair_FF, pair_FF.t()).reshape(-1)


def _columns(x_BQ: torch.Tensor, index_P: torch.Tensor) -> torch.Tensor:
    """Chosen columns. In 16 bits a CPU takes them one by one: by way of 32 bits it is four times as fast."""
    if x_BQ.device.type == "cpu" and x_BQ.element_size() == 2:
        return x_BQ.float().index_select(1, index_P).to(x_BQ.dtype)
    return x_BQ.index_select(1, index_P)


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BFD, pairs_P, mirror_Q):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x_BFD, mirror_Q)
        return _columns(torch.bmm(x_BFD, x_BFD.transpose(1, 2)).flatten(1), pairs_P)

    @staticmethod
    def backward(ctx, grad_BP):  # type: ignore[no-untyped-def]
        x_BFD, mirror_Q = ctx.saved_tensors
        num_rows, num_vectors, _ = x_BFD.shape
        padded = torch.cat([grad_BP, grad_BP.new_zeros(num_rows, 1)], dim=1)
        symmetric_BFF = _columns(padded, mirror_Q).view(num_rows, num_vectors, num_vectors)
        return torch.bmm(symmetric_BFF, x_BFD), None, None


def pair_dots(x_BFD: torch.Tensor, pairs_P: torch.Tensor, mirror_Q: torch.Tensor) -> torch.Tensor:
    """Dot products of all pairs of vectors of a row: ``[B, F, D] -> [B, F (F - 1) / 2]``, pairs j < i in row order."""
    dots_BP: torch.Tensor = _PairDots.apply(x_BFD, pairs_P, mirror_Q)  # type: ignore[no-untyped-call]
    return dots_BP


class DotInteraction(Block):
    """Bottom tower's output and the pair products side by side: ``[B, D], [B, F, D] -> [B, padded D + P]``.

    Without dense columns there is no bottom tower, and the rows' products stand alone: ``[B, F, D] -> [B, padded P]``.
    """

    pairs_P: torch.Tensor
    mirror_Q: torch.Tensor

    def __init__(self, name: str, dense_name: str | None, num_features: int, dim: int) -> None:
        inputs = ("rows_BFD",) if dense_name is None else ("rows_BFD", dense_name)
        super().__init__(name, inputs, (name + "_BK",))
        self.num_vectors = num_features + len(inputs) - 1
        num_pairs = self.num_vectors * (self.num_vectors - 1) // 2
        self.width = padded_width(num_pairs + dim * (len(inputs) - 1))
        self.register_buffer("pairs_P", torch.empty(num_pairs, dtype=torch.int64), persistent=False)
        self.register_buffer("mirror_Q", torch.empty(self.num_vectors**2, dtype=torch.int64), persistent=False)

    def reset(self, generator: torch.Generator) -> None:
        """Fill the index buffers, which the meta device leaves empty."""
        self.pairs_P.copy_(pair_positions(self.num_vectors))
        self.mirror_Q.copy_(mirror_positions(self.num_vectors))

    def forward(
        self, rows_BFD: torch.Tensor, dense_BD: torch.Tensor | None = None, *, context: StepContext
    ) -> torch.Tensor:
        if dense_BD is None:
            return join_padded([pair_dots(rows_BFD, self.pairs_P, self.mirror_Q)])
        x_BFD = torch.cat([dense_BD.unsqueeze(1), rows_BFD], dim=1)
        return join_padded([dense_BD, pair_dots(x_BFD, self.pairs_P, self.mirror_Q)])
