"""A block: one step of a tower, with named inputs and outputs. A stage cut is any point between two blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import nn

from recpipe.errors import ConfigError
from recpipe.model.context import StepContext
from recpipe.model.dropout import RowDropout
from recpipe.model.seeding import generator_for, stable_key

Named = dict[str, torch.Tensor]


class Block(nn.Module):
    """Base of every block: ``forward(*tensors, context=...)`` takes ``inputs`` and returns ``outputs``, in order.

    A subclass whose modules hold weights builds them from `layers.py`; everything with a ``reset(generator)`` method is
    initialised by :func:`reset_block`, so the constructor may run on the meta device.

    Attributes:
        couples_rows: a row's output depends on other rows of the step, beyond batch normalisation, which is found without it.
            A subclass that does sets it; it is then refused where a step is cut in pieces.
        draws: it draws from torch's global generator in training; found by `coupling.find_couplings`.
    """

    couples_rows: bool = False
    draws: bool = False

    def __init__(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self._dropouts: list[RowDropout] = []

    def use_row_dropout(self) -> None:
        """Puts `RowDropout` in the place of every ``nn.Dropout``, under its name in the block."""
        made: dict[nn.Module, RowDropout] = {}
        for path, module in list(self.named_modules()):
            # Not named_children: it leaves out a module that stands in two places.
            for name, child in module._modules.items():
                if type(child) is nn.Dropout:
                    layer = f"{self.name}/{path}.{name}" if path else f"{self.name}/{name}"
                    module._modules[name] = made.setdefault(child, RowDropout(child.p, child.inplace, layer))
        self._dropouts += made.values()

    def begin(self, context: StepContext, num_rows: int) -> None:
        """Before each forward: says what its random numbers depend on."""
        for dropout in self._dropouts:
            dropout.begin(context, num_rows)
        if self.draws and context.training:
            torch.manual_seed(stable_key("block", context.seed, context.step, self.name, context.first_row))

    def extra_repr(self) -> str:
        return f"{self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"


def run_blocks(blocks: Iterable[nn.Module], named: Named, context: StepContext) -> Named:
    """Run blocks in order over named tensors; returns the input names and all that the blocks made."""
    tensors = dict(named)
    for block in blocks:
        assert isinstance(block, Block)
        block.begin(context, tensors[block.inputs[0]].shape[0])
        made = block(*(tensors[name] for name in block.inputs), context=context)
        tensors.update(zip(block.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return tensors


def reset_block(block: Block, index: int, seed: int) -> None:
    """Initialise a block's weights from (seed, index): the same start on whichever rank the block lies.

    What has ``reset(generator)`` is filled by it, with all that lies inside; any other module that holds weights by its
    ``reset_parameters()``, as torch's own have it.

    Raises:
        ConfigError: a module holds weights and has neither.
    """
    generator = generator_for("block", seed, index)
    covered = ""
    for path, module in block.named_modules():
        inside = bool(covered) and path.startswith(covered)
        reset = getattr(module, "reset", None)
        if reset is not None:
            cast(Callable[[torch.Generator], None], reset)(generator)
            covered = covered if inside else f"{path}." if path else covered
        elif not inside:
            _reset_plain(block, path, module, stable_key("block", seed, index, path))


def _reset_plain(block: Block, path: str, module: nn.Module, seed: int) -> None:
    plain = getattr(module, "reset_parameters", None)
    if plain is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            cast(Callable[[], None], plain)()
    elif any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
        raise ConfigError(
            f"block {block.name}: {path or 'the block'} ({type(module).__name__}) holds weights, but has neither "
            f"reset(generator) nor reset_parameters() to fill them with: write one, see docs/models.md"
        )
