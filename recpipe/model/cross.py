"""The cross layers of DCN-V2, each a block of its own, so that a cut may lie between any two."""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.layers import Affine


class CrossBlock(Block):
    """``x0 * (W x + b) + x``, all ``[B, K]``; W full or the product of two matrices of a low rank."""

    def __init__(self, name: str, start: str, source: str, width: int, low_rank_dim: int) -> None:
        inputs = (start,) if source == start else (start, source)
        super().__init__(name, inputs, (name + "_BK",))
        self.down = Affine(width, low_rank_dim, bias=False) if low_rank_dim else None
        self.up = Affine(low_rank_dim or width, width)

    def forward(self, x0_BK: torch.Tensor, x_BK: torch.Tensor | None = None, *, context: StepContext) -> torch.Tensor:
        x_BK = x0_BK if x_BK is None else x_BK
        low_BR = x_BK if self.down is None else self.down(x_BK)
        return torch.addcmul(x_BK, x0_BK, self.up(low_BR))


def cross_blocks(start: str, width: int, num_layers: int, low_rank_dim: int) -> list[Block]:
    """Cross layers ``cross_0, cross_1, ...``; all of them read the tensor ``start``."""
    blocks: list[Block] = []
    source = start
    for position in range(num_layers):
        block = CrossBlock(f"cross_{position}", start, source, width, low_rank_dim)
        source = block.outputs[0]
        blocks.append(block)
    return blocks
