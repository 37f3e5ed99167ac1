"""The dot interaction of DLRM: products of all pairs of a row's vectors.

Its own backward: the gradient of the F x F products is rebuilt as one symmetric matrix by a gather, and one batched
product with the vectors gives the rest. Autograd through a triangle index would scatter instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.join import padded_width

_CHUNK_ROWS = 256
"""Of 27 vectors of 64 floats: 1.8 MB."""


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


class _Interaction(torch.autograd.Function):
    """A chunk of rows at a time: what lies between stays in a core's cache. The vectors are stacked again in backward."""

    @staticmethod
    def forward(ctx, rows_BFD, dense_BD, pairs_P, mirror_Q):  # type: ignore[no-untyped-def]
        first = 0 if dense_BD is None else dense_BD.shape[1]
        stop = first + len(pairs_P)
        out_BK = rows_BFD.new_empty(rows_BFD.shape[0], padded_width(stop))
        if dense_BD is not None:
            out_BK[:, :first] = dense_BD
        out_BK[:, stop:] = 0
        for chunk in _chunks(rows_BFD):
            x_CVD = _stacked(rows_BFD, dense_BD, chunk)
            out_BK[chunk, first:stop] = _columns(torch.bmm(x_CVD, x_CVD.transpose(1, 2)).flatten(1), pairs_P)
        ctx.save_for_backward(rows_BFD, dense_BD, mirror_Q)
        ctx.dots = slice(first, stop)
        return out_BK

    @staticmethod
    def backward(ctx, grad_BK):  # type: ignore[no-untyped-def]
        rows_BFD, dense_BD, mirror_Q = ctx.saved_tensors
        grad_rows_BFD, grad_dense_BD = torch.empty_like(rows_BFD), None
        if dense_BD is not None:
            grad_dense_BD = grad_BK[:, : ctx.dots.start].clone()
        for chunk in _chunks(rows_BFD):
            x_CVD = _stacked(rows_BFD, dense_BD, chunk)
            num_vectors = x_CVD.shape[1]
            padded = functional.pad(grad_BK[chunk, ctx.dots], (0, 1))
            grad_CVD = torch.bmm(_columns(padded, mirror_Q).view(-1, num_vectors, num_vectors), x_CVD)
            grad_rows_BFD[chunk] = grad_CVD[:, num_vectors - rows_BFD.shape[1] :]
            if grad_dense_BD is not None:
                grad_dense_BD[chunk] += grad_CVD[:, 0]
        return grad_rows_BFD, grad_dense_BD, None, None


def _chunks(rows_BFD: torch.Tensor) -> Iterator[slice]:
    """All rows at once on a device without a cache to fit in, and for a graph of any number of rows."""
    if rows_BFD.device.type != "cpu" or torch.compiler.is_compiling():
        return iter((slice(None),))
    return (slice(start, start + _CHUNK_ROWS) for start in range(0, len(rows_BFD), _CHUNK_ROWS))


def _stacked(rows_BFD: torch.Tensor, dense_BD: torch.Tensor | None, chunk: slice) -> torch.Tensor:
    rows_CFD = rows_BFD[chunk]
    return rows_CFD if dense_BD is None else torch.cat([dense_BD[chunk].unsqueeze(1), rows_CFD], dim=1)


def interact(
    rows_BFD: torch.Tensor, dense_BD: torch.Tensor | None, pairs_P: torch.Tensor, mirror_Q: torch.Tensor
) -> torch.Tensor:
    """``dense_BD``, dot products of all pairs of vectors of a row (itself the first), zeros up to :func:`padded_width`.

    Args:
        pairs_P, mirror_Q: `pair_positions` and `mirror_positions` of the vectors; pairs j < i come in row order.
    """
    out_BK: torch.Tensor = _Interaction.apply(rows_BFD, dense_BD, pairs_P, mirror_Q)  # type: ignore[no-untyped-call]
    return out_BK


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
        return interact(rows_BFD, dense_BD, self.pairs_P, self.mirror_Q)
