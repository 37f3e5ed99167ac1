"""Blocks whose result depends on how the rows of a step are cut: exact only where a step is computed in one piece.

Two kinds: blocks that couple rows (batch normalisation, in-batch negatives), which say so by `Block.couples_rows` or hold a
module of torch that does; and blocks that draw from torch's global generator, which are found by running them once on the
meta device. `nn.Dropout` is neither: its mask is made by row, see `dropout.RowDropout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from recpipe.model.block import Block
from recpipe.model.context import StepContext
from recpipe.model.layers import RowsNorm


@dataclass(frozen=True)
class Coupling:
    """Why a block's result depends on the cut.

    Args:
        block: its name.
        why: for a message.
        has_statistics: it keeps running statistics of the rows of a step.
        least_rows: rows that the last step of an epoch needs for it.
    """

    block: str
    why: str
    has_statistics: bool = False
    least_rows: int = 1


def find_couplings(blocks: Sequence[Block], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> list[Coupling]:
    """At most one a block.

    Args:
        blocks: on the meta device.
        shapes: of every named tensor, for one row.
        dtype: of the named tensors.
    """
    drawing = [_draws(block, shapes, dtype) for block in blocks]
    pairs = zip(blocks, drawing, strict=True)
    return [found for block, draws in pairs if (found := _coupling(block) or draws) is not None]


def _coupling(block: Block) -> Coupling | None:
    for module in block.modules():
        if isinstance(module, _BatchNorm):
            # Ours goes by its running statistics where a last step has one row; torch's own raises.
            least = 1 if isinstance(module, RowsNorm) else 2
            return Coupling(block.name, f"{type(module).__name__}, batch normalisation, couples rows", True, least)
        if isinstance(module, _NormBase) and module.track_running_stats:
            return Coupling(block.name, f"{type(module).__name__} keeps statistics of the rows that it sees", True)
    return Coupling(block.name, "it says that it couples rows") if block.couples_rows else None


class _Drawing(TorchDispatchMode):
    """Notes the first operation that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found = self.found or str(func.overloadpacket)
        return func(*args, **(kwargs or {}))


def _draws(block: Block, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> Coupling | None:
    device = torch.device("meta")
    tensors = [torch.empty(2, *shapes[name], dtype=dtype, device=device) for name in block.inputs]
    was_training = block.training
    with _Drawing() as drawing, device, torch.no_grad():
        block.train()
        block.begin(StepContext(training=True), 2)
        block(*tensors, context=StepContext(training=True))
        block.train(was_training)
    block.draws = bool(drawing.found)
    return Coupling(block.name, f"{drawing.found} draws random numbers") if drawing.found else None

