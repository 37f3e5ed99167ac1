"""The layers towers are made of: an affine map and a hidden layer (affine, optional batch norm, ReLU, dropout)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.dropout import relu_dropout_


class Affine(nn.Linear):
    """``x W^T + b``. Weights start normal with variance 2 / (inputs + outputs), biases at zero.

    Args:
        idle: outputs whose bias has no effect on the loss, because a softmax or a normalisation behind them takes it out.
            Such a bias stays at its start: its gradient would be nothing but rounding, and Adam would make steps of it.
    """

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool = True, idle: slice | None = None) -> None:
        super().__init__(num_inputs, num_outputs, bias)
        self.idle = idle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias
        if self.idle is not None:
            before, after = self.idle.start, self.idle.stop
            bias = torch.cat([bias[:before], bias[before:after].detach(), bias[after:]])  # type: ignore[assignment]
        return nn.functional.linear(x, self.weight, bias)

    def reset_parameters(self) -> None:
        """Left to :meth:`reset`, which has the generator."""

    def reset(self, generator: torch.Generator) -> None:
        fill_normal(self.weight, math.sqrt(2.0 / (self.in_features + self.out_features)), generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def fill_normal(weight: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Fill in place from a CPU generator, by way of float32 so that every dtype and device has the same start."""
    with torch.no_grad():
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))


class VectorNorm(nn.LayerNorm):
    """Layer normalisation of each vector by itself: exact for any split of the rows."""

    def reset(self, generator: torch.Generator) -> None:
        self.reset_parameters()


class RowsNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows of a step, which has to be one piece (see `config.ModelConfig`)."""

    def reset(self, generator: torch.Generator) -> None:
        self.reset_parameters()

    def normalise(self, x_BH: torch.Tensor, training: bool) -> torch.Tensor:
        """Batch statistics in training, running ones otherwise and where fewer than two rows give no variance."""
        self.train(training and x_BH.shape[0] > 1)
        normed_BH: torch.Tensor = self(x_BH)
        return normed_BH


class HiddenBlock(Block):
    """One hidden layer: ``[B, K] -> [B, H]``."""

    def __init__(
        self, name: str, source: str, num_inputs: int, width: int, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        super().__init__(name, (source,), (name + "_BH",))
        self.width = width
        self.affine = Affine(num_inputs, width, idle=slice(0, width) if batch_norm else None)
        self.norm = RowsNorm(width) if batch_norm else None
        self.dropout = dropout

    def forward(self, x_BK: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        x_BH: torch.Tensor = self.affine(x_BK)
        if self.norm is not None:
            x_BH = self.norm.normalise(x_BH, context.training)
        return relu_dropout_(x_BH, self.dropout, self.name, context)


class LogitBlock(Block):
    """The last layer of a tower: ``[B, K] -> [B]``. Several inputs stand side by side, the addends are added."""

    def __init__(self, name: str, sources: tuple[str, ...], num_inputs: int, addends: tuple[str, ...] = ()) -> None:
        super().__init__(name, sources + addends, ("logits_B",))
        self.num_sources = len(sources)
        self.affine = Affine(num_inputs, 1)

    def forward(self, *tensors: torch.Tensor, context: StepContext) -> torch.Tensor:
        sources = tensors[: self.num_sources]
        x_BK = sources[0] if self.num_sources == 1 else torch.cat(sources, dim=1)
        logits_B: torch.Tensor = self.affine(x_BK).squeeze(1)
        for addend_B in tensors[self.num_sources :]:
            logits_B = logits_B + addend_B
        return logits_B


def hidden_blocks(
    prefix: str, source: str, num_inputs: int, widths: Sequence[int], dropout: float = 0.0, batch_norm: bool = False
) -> list[HiddenBlock]:
    """A tower of hidden layers named ``<prefix>_0, <prefix>_1, ...``, a block each."""
    blocks: list[HiddenBlock] = []
    for position, width in enumerate(widths):
        block = HiddenBlock(f"{prefix}_{position}", source, num_inputs, width, dropout, batch_norm)
        source, num_inputs = block.outputs[0], width
        blocks.append(block)
    return blocks


def over_arch(
    source: str, num_inputs: int, widths: Sequence[int], dropout: float, batch_norm: bool, addends: tuple[str, ...] = ()
) -> list[Block]:
    """The top tower ``over_0, ..., logits``; ``widths`` end in 1. Addends, ``[B]`` each, are added to the logits."""
    hidden = hidden_blocks("over", source, num_inputs, widths[:-1], dropout, batch_norm)
    last, width = (hidden[-1].outputs[0], hidden[-1].width) if hidden else (source, num_inputs)
    return [*hidden, LogitBlock("logits", (last,), width, addends)]
