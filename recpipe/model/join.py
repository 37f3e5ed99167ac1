"""Laying vectors side by side, where a tower reads them as one."""

from __future__ import annotations

import torch

from recpipe.model.block import Block
from recpipe.model.context import StepContext

_GEMM_MULTIPLE = 16


def padded_width(width: int) -> int:
    """The next multiple of 16: matrix products over vectors of another width take up to half as long again."""
    return -(-width // _GEMM_MULTIPLE) * _GEMM_MULTIPLE


def join_padded(parts: list[torch.Tensor]) -> torch.Tensor:
    """``[B, K_i]`` side by side, and zeros up to :func:`padded_width`."""
    width = sum(part.shape[1] for part in parts)
    num_zeros = padded_width(width) - width
    if num_zeros:
        parts = [*parts, parts[0].new_zeros(parts[0].shape[0], num_zeros)]
    return torch.cat(parts, dim=1)


class JoinBlock(Block):
    """``[B, K], [B, F, D] -> [B, padded K + F D]``, the start ``x0_BK`` of a tower."""

    def __init__(self, name: str, dense_name: str, rows_name: str = "rows_BFD") -> None:
        super().__init__(name, (dense_name, rows_name), ("x0_BK",))

    def forward(self, dense_BK: torch.Tensor, rows_BFD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return join_padded([dense_BK, rows_BFD.flatten(1)])


class FlattenBlock(Block):
    """``[B, V, D] -> [B, V D]``."""

    def __init__(self, name: str, source: str) -> None:
        super().__init__(name, (source,), (name + "_BK",))

    def forward(self, x_BVD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return x_BVD.flatten(1)
