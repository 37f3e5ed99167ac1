"""A model: the tables it asks for, and a tower as an ordered list of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import nn

from recpipe.model.block import Block, reset_block, run_blocks
from recpipe.model.boundaries import RowShape, boundary_specs
from recpipe.model.context import StepContext
from recpipe.model.coupling import Coupling
from recpipe.model.rows import RowInit, init_rows
from recpipe.specs import TableSpec

ROWS = "rows_BFD"
"""Name of the pooled rows among a tower's tensors."""


class Model(nn.Module):
    """Blocks over named tensors, from ``dense_BD`` and ``rows_BFD`` to ``logits_B``.

    Args:
        name: the model's name in the configuration.
        tables: one a feature, in schema order, all of the same dim.
        blocks: in the order they run, on the meta device until :meth:`materialise`.
        num_dense: dense columns.
        rule: how rows start.
        row_shapes: shape of every named tensor for one row.
        row_flops: operations of each block's forward pass for one row, a cost to cut stages by before any is measured.
        couplings: blocks that are exact only where a step is computed in one piece.
    """

    def __init__(
        self,
        name: str,
        tables: tuple[TableSpec, ...],
        blocks: list[Block],
        num_dense: int,
        rule: RowInit,
        row_shapes: dict[str, RowShape],
        row_flops: list[int],
        couplings: Sequence[Coupling] = (),
    ) -> None:
        super().__init__()
        self.name = name
        self.tables = tables
        self.num_dense = num_dense
        self.rule = rule
        self.boundaries = boundary_specs(blocks, row_shapes)
        self.row_flops = row_flops
        self.couplings = tuple(couplings)
        self.blocks = nn.ModuleList(blocks)

    @property
    def row_dim(self) -> int:
        """Floats of a table row."""
        return self.tables[0].dim

    @property
    def num_beside_rows(self) -> int:
        """Blocks before the first that reads rows of tables: a bottom tower."""
        readers = (k for k, block in enumerate(self.blocks) if ROWS in cast(Block, block).inputs)
        return min(readers, default=len(self.blocks))

    def materialise(self, indices: Iterable[int], seed: int, device: torch.device | str = "cpu") -> None:
        """Give blocks memory and first weights. The others stay on the meta device: a rank holds only its stages."""
        for index in indices:
            block = self.blocks[index]
            assert isinstance(block, Block)
            block.to_empty(device=device)
            reset_block(block, index, seed)

    def init_rows(
        self, table: TableSpec, row_start: int, row_stop: int, seed: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """First values of rows ``[row_start, row_stop)``, ``[rows, dim]``; see :func:`recpipe.model.rows.init_rows`."""
        return init_rows(table, row_start, row_stop, seed, dtype, self.rule)

    def forward(self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Logits ``[B]`` of dense values ``[B, num_dense]`` and pooled rows ``[B, F, row_dim]``; B may be zero."""
        return run_blocks(self.blocks, {"dense_BD": dense_BD, ROWS: rows_BFD}, context)["logits_B"]
