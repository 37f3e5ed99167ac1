"""A stage of the tower: consecutive blocks between two cuts, forward and backward, one message in and one out.

A message holds the tensors that cross the cut: first those that a gradient comes back for, then the others (dense values
that a later block reads, and the labels, which travel along to the loss). Its gradient has the layout of the first part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import nn

from recpipe.model import Model, StepContext, summed_bce
from recpipe.model.block import Named, run_blocks
from recpipe.model.boundaries import BoundarySpec
from recpipe.model.model import ROWS
from recpipe.runtime.backward import Halves, Ready, backward, backward_input, backward_weights

LABELS = "labels_B"


class Cut:
    """The layout of the message over one cut.

    Args:
        spec: the tensors that the blocks behind the cut need.
    """

    def __init__(self, spec: BoundarySpec) -> None:
        self.moving = _only(spec, True)
        fixed = _only(spec, False)
        self.fixed = replace(
            fixed, names=(*fixed.names, LABELS), shapes=(*fixed.shapes, ()), has_grad=(*fixed.has_grad, False)
        )

    def numel(self, num_rows: int) -> int:
        """Elements of a message of `num_rows` rows."""
        return num_rows * (self.moving.row_numel + self.fixed.row_numel)

    def grad_numel(self, num_rows: int) -> int:
        """Elements of its gradient."""
        return num_rows * self.moving.row_numel


def _only(spec: BoundarySpec, has_grad: bool) -> BoundarySpec:
    chosen = [i for i, flag in enumerate(spec.has_grad) if flag is has_grad]
    names, shapes = (tuple(part[i] for i in chosen) for part in (spec.names, spec.shapes))
    return BoundarySpec(spec.cut, names, shapes, (has_grad,) * len(chosen))  # type: ignore[arg-type]


@dataclass
class Activation:
    """What a forward keeps for its backward.

    Args:
        leaf: what the gradient is wanted of: received rows, or the first part of the message.
        output: the loss, or the first part of the outgoing message.
        message: the outgoing message, M elements; empty at the last stage.
        logits_B, labels_B: at the last stage.
        halves: between the two halves of backward.
    """

    leaf: torch.Tensor
    output: torch.Tensor
    message: torch.Tensor
    logits_B: torch.Tensor
    labels_B: torch.Tensor
    halves: Halves | None = None


class Stage:
    """Blocks of one stage, materialised on this rank.

    Args:
        model: all blocks; those of other ranks may lie on the meta device.
        blocks: indices of this stage.
        dtype: that activations are computed in; None: that of the weights. Weights, their gradients and the loss keep theirs.
    """

    def __init__(self, model: Model, blocks: range, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._input_dtype = dtype or next(model.parameters()).dtype
        self.blocks = [model.blocks[index] for index in blocks]
        self.is_first, self.is_last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.entry, self.exit = (Cut(model.boundaries[cut]) for cut in (blocks.start, blocks.stop))
        self.weights: list[nn.Parameter] = [
            p for block in self.blocks for p in block.parameters() if p.requires_grad
        ]
        self._first_reader = min(model.num_beside_rows, len(self.blocks))

    def forward_first(
        self,
        dense_BD: torch.Tensor,
        rows: Callable[[], torch.Tensor],
        labels_B: torch.Tensor,
        context: StepContext,
        global_rows: int,
    ) -> Activation:
        """Forward of stage 0.

        Args:
            rows: waits for the rows, ``[B, F, D]``, and gives them; asked once, when a block is the first to read them.
        """
        dtype = self._input_dtype
        named = {"dense_BD": dense_BD.to(dtype), LABELS: labels_B.to(dtype)}
        with self._autocast(dense_BD):
            named = run_blocks(self.blocks[: self._first_reader], named, context)
        rows_BFD = rows().requires_grad_()
        return self.forward(rows_BFD, {**named, ROWS: rows_BFD.to(dtype)}, context, global_rows, self._first_reader)

    def input(self, message_M: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, Named]:
        """Leaf and named tensors of any other stage."""
        size = self.entry.grad_numel(num_rows)
        leaf = message_M[:size].detach().requires_grad_()
        return leaf, self.entry.moving.unpack(leaf, num_rows) | self.entry.fixed.unpack(message_M[size:], num_rows)

    def forward(
        self, leaf: torch.Tensor, named: Named, context: StepContext, global_rows: int, first: int = 0
    ) -> Activation:
        """Runs the blocks from `first` on; at the last stage gives the share of these rows in the step's loss."""
        with self._autocast(leaf):
            tensors = run_blocks(self.blocks[first:], named, context)
        if not self.is_last:
            tensors = {name: tensor.to(self._dtype) for name, tensor in tensors.items()} if self._dtype else tensors
            output = self.exit.moving.pack(tensors)
            message = torch.cat([output.detach(), self.exit.fixed.pack(tensors)])
            return Activation(leaf, output, message, output.new_empty(0), output.new_empty(0))
        logits_B, labels_B = tensors["logits_B"], tensors[LABELS]
        if self._dtype is not None:
            logits_B = logits_B.float()
        loss, _ = summed_bce(logits_B, labels_B, global_rows)
        return Activation(leaf, loss, loss.new_empty(0), logits_B.detach(), labels_B)

    def _autocast(self, like: torch.Tensor) -> AbstractContextManager[None]:
        return torch.autocast(like.device.type, self._dtype, enabled=self._dtype is not None)

    def backward(self, kept: Activation, grad_M: torch.Tensor | None, ready: Ready) -> None:
        """Whole backward; hands on the gradient of the leaf as soon as it is there, which is before the end."""
        backward(kept.output, grad_M, kept.leaf, ready)

    def backward_input(self, kept: Activation, grad_M: torch.Tensor | None, ready: Ready) -> None:
        """The half that other stages and the tables wait for; hands on the gradient of the leaf."""
        grad, kept.halves = backward_input(kept.output, grad_M, kept.leaf, self.weights)
        ready(grad)

    def backward_weights(self, kept: Activation) -> None:
        """The other half."""
        assert kept.halves is not None
        backward_weights(self.weights, kept.halves)
