"""First-order weights, kept as one more column of each table row, so that one exchange brings vector and weight."""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.layers import Affine


class FirstOrderBlock(Block):
    """Splits rows into vectors and first-order weights and adds the latter up with a linear map of the dense columns.

    ``[B, num_dense], [B, F, row dim] -> vectors [B, F, D], first-order logits [B]``. Behind the weight is padding.
    """

    def __init__(self, name: str, num_dense: int, embedding_dim: int, row_dim: int) -> None:
        super().__init__(name, ("dense_BD", "rows_BFD"), ("vectors_BFD", "first_order_B"))
        self.sizes = [embedding_dim, 1, row_dim - embedding_dim - 1]
        self.affine = Affine(num_dense, 1)

    def forward(
        self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, *, context: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        vectors_BFD, weights_BF1, _padding = torch.split(rows_BFD, self.sizes, dim=2)
        return vectors_BFD, self.affine(dense_BD).squeeze(1) + weights_BF1.sum(dim=(1, 2))
