"""Dropout whose mask is a function of (seed, step, layer, global row, column): the same for any split of the rows.

A mask is a hash, not a stream: a row key times a column key, mixed once, gives 32 bits that serve two columns.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from recpipe.errors import ConfigError
from recpipe.model.context import StepContext
from recpipe.model.seeding import stable_key

_MIX_64 = -7046029254386353131
_MIX_32 = -1640531535


def _mixed_int32(counter_N: torch.Tensor, key: int) -> torch.Tensor:
    """Well mixed int32 ``[N]`` of int64 counters (two rounds of multiply and fold, wrapping)."""
    bits_N = (counter_N + key) * _MIX_64
    bits_N = (bits_N ^ (bits_N >> 29)) * _MIX_64
    return (bits_N >> 32).to(torch.int32)


def keep_mask(
    num_rows: int, width: int, rate: float, layer: str, context: StepContext, device: torch.device
) -> torch.Tensor:
    """Which units stay: int16 ``[B, width]`` of 0 and 1; a unit is dropped with probability ``rate`` (to 1 / 65536)."""
    key = stable_key("dropout", context.seed, context.step, layer)
    row_key_B = _mixed_int32(context.row_positions(num_rows, device), key)
    pairs = torch.arange((width + 1) // 2, device=device)
    # Odd, so that multiplication loses nothing of the row key.
    column_key_P = _mixed_int32(pairs, key ^ _MIX_32) | 1
    bits_BP = row_key_B[:, None] * column_key_P
    bits_BP.bitwise_xor_(bits_BP >> 15).mul_(_MIX_32)
    kept = round((1.0 - rate) * 65536) - 32768
    return bits_BP.view(torch.int16).lt_(kept)[:, :width]


def dropout(x: torch.Tensor, rate: float, layer: str, context: StepContext) -> torch.Tensor:
    """Drop units of ``x`` ``[B, ...]`` and scale the others by 1 / (1 - rate); ``x`` itself outside training."""
    if rate == 0.0 or not context.training:
        return x
    return x * _mask_like(x, rate, layer, context) * (1.0 / (1.0 - rate))


def _mask_like(x: torch.Tensor, rate: float, layer: str, context: StepContext) -> torch.Tensor:
    mask_BK = keep_mask(x.shape[0], math.prod(x.shape[1:]), rate, layer, context, x.device)
    return mask_BK.reshape(x.shape)


class _ReluDropout(torch.autograd.Function):
    """ReLU, mask and scale in place. The output alone tells backward which units passed, so nothing else is saved."""

    @staticmethod
    def forward(ctx, x, mask, scale):  # type: ignore[no-untyped-def]
        ctx.mark_dirty(x)
        ctx.scale = scale
        x.relu_().mul_(mask).mul_(scale)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, out, 0).mul_(ctx.scale), None, None


def relu_dropout_(x: torch.Tensor, rate: float, layer: str, context: StepContext) -> torch.Tensor:
    """ReLU, then dropout in training, of ``x`` ``[B, ...]`` in place: the caller must not use ``x`` again."""
    if rate == 0.0 or not context.training:
        return x.relu_()
    mask = _mask_like(x, rate, layer, context)
    out: torch.Tensor = _ReluDropout.apply(x, mask, 1.0 / (1.0 - rate))  # type: ignore[no-untyped-call]
    return out


class RowDropout(nn.Dropout):
    """``nn.Dropout`` whose mask is made by row; takes its place in every block.

    Args:
        p, inplace: as there.
        layer: name of the mask's numbers; each use within one forward has numbers of its own.
    """

    def __init__(self, p: float, inplace: bool, layer: str) -> None:
        super().__init__(p, inplace)
        self._layer = layer
        self._context, self._num_rows, self._uses = StepContext(training=False), 0, 0

    def begin(self, context: StepContext, num_rows: int) -> None:
        """Before each forward of its block, over `num_rows` rows."""
        self._context, self._num_rows, self._uses = context, num_rows, 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Dimension 0 of the input is the rows. Raises ConfigError where it is not, or in a forward that is done again."""
        if not self._context.training or self.p == 0.0:
            return input
        if input.dim() == 0 or input.shape[0] != self._num_rows or torch._C._current_graph_task_id() != -1:
            raise ConfigError(
                f"nn.Dropout {self._layer}: its input is {tuple(input.shape)} for {self._num_rows} rows; it works on tensors "
                f"whose first dimension is the rows, in the first forward; see recpipe.model.dropout for others"
            )
        self._uses += 1
        layer, scale = f"{self._layer}/{self._uses}", 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0
        mask = _mask_like(input, self.p, layer, self._context)
        return input.mul_(mask).mul_(scale) if self.inplace else input * mask * scale
