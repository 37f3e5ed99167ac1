"""What crosses a cut between two blocks: the named tensors still needed behind it, packed in one message.

Found by liveness over the blocks' names, so a tensor that many later blocks read (the x0 of DCN-V2) needs no special
case: it is in the message of every cut before its last reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recpipe.model.block import Block, Named, run_blocks
from recpipe.model.context import StepContext

OUTPUT = "logits_B"
RowShape = tuple[int, ...]


@dataclass(frozen=True)
class BoundarySpec:
    """The tensors that cross one cut.

    Args:
        cut: number of blocks before it.
        names: in the order of the message.
        shapes: of each tensor, for one row; ``()`` where a row has one number.
        has_grad: whether a gradient comes back for it; none does for ``dense_BD``.
    """

    cut: int
    names: tuple[str, ...]
    shapes: tuple[RowShape, ...]
    has_grad: tuple[bool, ...]

    @property
    def row_numel(self) -> int:
        """Elements of the message for one row."""
        return sum(math.prod(shape) for shape in self.shapes)

    def pack(self, named: Named) -> torch.Tensor:
        """One contiguous message, ``[B * row_numel]``, name after name; differentiable."""
        return torch.cat([named[name].reshape(-1) for name in self.names])

    def unpack(self, message_M: torch.Tensor, num_rows: int) -> Named:
        """Views of the message by name; differentiable: the message's gradient is one buffer of its layout."""
        assert message_M.shape == (num_rows * self.row_numel,), f"{tuple(message_M.shape)}: not {num_rows} rows"
        parts = torch.split(message_M, [num_rows * math.prod(shape) for shape in self.shapes])
        shaped = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(num_rows, *shape) for name, part, shape in shaped}


def live_names(blocks: Sequence[Block], cut: int) -> tuple[str, ...]:
    """Names that exist before ``cut`` and are read behind it, in the order of first reading; the logits at the end."""
    if cut == len(blocks):
        return (OUTPUT,)
    made_behind: set[str] = set()
    live: dict[str, None] = {}
    for block in blocks[cut:]:
        live.update(dict.fromkeys(name for name in block.inputs if name not in made_behind))
        made_behind.update(block.outputs)
    return tuple(live)


def trace_row_shapes(blocks: Sequence[Block], inputs: dict[str, RowShape], dtype: torch.dtype) -> dict[str, RowShape]:
    """Shape of every named tensor for one row, by running blocks that lie on the meta device."""
    num_rows = 2
    named = {name: torch.empty(num_rows, *shape, dtype=dtype, device="meta") for name, shape in inputs.items()}
    with torch.no_grad():
        tensors = run_blocks(blocks, named, StepContext(training=False))
    return {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}


def boundary_specs(blocks: Sequence[Block], shapes: dict[str, RowShape]) -> tuple[BoundarySpec, ...]:
    """One for every possible cut: ``specs[c]`` lies before block c; 0 is the model's own input."""
    return tuple(_spec(live_names(blocks, cut), cut, shapes) for cut in range(len(blocks) + 1))


def _spec(names: tuple[str, ...], cut: int, shapes: dict[str, RowShape]) -> BoundarySpec:
    return BoundarySpec(cut, names, tuple(shapes[name] for name in names), tuple(name != "dense_BD" for name in names))
