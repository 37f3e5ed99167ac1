"""A user's own model for tests: DLRM with one more block behind its interaction, made from plain modules of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from recpipe.model import StepContext
from recpipe.model.block import Block
from recpipe.model.build import BUILDERS
from recpipe.model.dlrm import dlrm_blocks


class OwnBlock(Block):
    """Runs plain modules, or a function, on one tensor of the tower."""

    def __init__(self, source: str, body: nn.Module | Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__("own", (source,), (source,))
        self.body = body

    def forward(self, x: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        made: torch.Tensor = self.body(x)
        return made


def with_own_block(monkeypatch, make_body, couples_rows: bool = False) -> None:
    """`model=dlrm` gets a block `own`; `make_body(width)` gives what it runs."""

    def blocks(cfg, schema):
        found = dlrm_blocks(cfg, schema)
        at = next(i for i, block in enumerate(found) if block.name == "interaction") + 1
        own = OwnBlock(found[at].inputs[0], make_body(found[at].affine.in_features))
        own.couples_rows = couples_rows
        return [*found[:at], own, *found[at:]]

    monkeypatch.setitem(BUILDERS, "dlrm", blocks)
