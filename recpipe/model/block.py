"""A block: one step of a tower, with named inputs and outputs. A stage cut is any point between two blocks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from recpipe.model.context import StepContext
from recpipe.model.seeding import generator_for

Named = dict[str, torch.Tensor]


class Block(nn.Module):
    """Base of every block: ``forward(*tensors, context=...)`` takes ``inputs`` and returns ``outputs``, in order.

    A subclass whose modules hold weights builds them from `layers.py`; everything with a ``reset(generator)`` method is
    initialised by :func:`reset_block`, so the constructor may run on the meta device.
    """

    def __init__(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.name = name
        self.inputs = inputs
        self.outputs = outputs

    def extra_repr(self) -> str:
        return f"{self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"


def run_blocks(blocks: Iterable[nn.Module], named: Named, context: StepContext) -> Named:
    """Run blocks in order over named tensors; returns the input names and all that the blocks made."""
    tensors = dict(named)
    for block in blocks:
        assert isinstance(block, Block)
        made = block(*(tensors[name] for name in block.inputs), context=context)
        tensors.update(zip(block.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return tensors


def reset_block(block: Block, index: int, seed: int) -> None:
    """Initialise a block's weights from (seed, index): the same start on whichever rank the block lies."""
    generator = generator_for("block", seed, index)
    for module in block.modules():
        reset = getattr(module, "reset", None)
        if reset is not None:
            reset(generator)
