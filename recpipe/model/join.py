"""The block that lays dense values and rows side by side, where a tower reads them as one vector."""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext


class JoinBlock(Block):
    """``[B, K], [B, F, D] -> [B, K + F D]``, the start ``x0_BK`` of a tower."""

    def __init__(self, name: str, dense_name: str) -> None:
        super().__init__(name, (dense_name, "rows_BFD"), ("x0_BK",))

    def forward(self, dense_BK: torch.Tensor, rows_BFD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return torch.cat([dense_BK, rows_BFD.flatten(1)], dim=1)
