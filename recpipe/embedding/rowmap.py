"""Which rank holds a row, and where: the layouts of all tables as a few flat arrays.

All tables share one key space: table t owns keys [base[t], base[t] + num_rows). A *piece* is one column block of one row.
Pieces of the same (col_start, width, replicated) form a *class*; a rank keeps one tensor a class, so that one gather
serves every table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recpipe.embedding.layout import Shard, TableLayout


@dataclass(frozen=True, order=True)
class PieceClass:
    """Pieces that are alike: same columns, same way of being kept."""

    replicated: bool
    col_start: int
    width: int


@dataclass(frozen=True)
class LocalShard:
    """A shard in the store of its rank: rows [offset, offset + num_rows) of the tensor of class `piece_class`."""

    table: int
    shard: Shard
    piece_class: int
    offset: int


class RowMap:
    """Arrays that route keys to pieces, for one rank's point of view (replicated rows are its own).

    Args:
        layouts: one a table; all of the same dim.
        rank, world: this rank and the number of ranks.
    """

    def __init__(self, layouts: Sequence[TableLayout], rank: int, world: int) -> None:
        self.layouts = tuple(layouts)
        self.rank, self.world = rank, world
        self.dim = layouts[0].spec.dim
        self.classes = sorted({_class_of(layout, shard) for layout in layouts for shard in layout.shards})
        self.widths_K = torch.tensor([piece.width for piece in self.classes])
        rows = [layout.spec.num_rows for layout in layouts]
        self.bases = torch.tensor([0, *rows]).cumsum(0)[:-1]
        walk = self._walk()
        self.local_shards = [LocalShard(*placed) for placed in walk if placed[1].rank in (rank, -1)]
        self._build_routes(walk)

    @property
    def whole_rows(self) -> bool:
        """No table is cut by columns: a piece is a row."""
        return all(piece.width == self.dim for piece in self.classes)

    def num_local_rows(self, piece_class: int) -> int:
        """Rows of this rank's tensor of a class."""
        return sum(local.shard.num_rows for local in self.local_shards if local.piece_class == piece_class)

    def pieces(self, keys_U: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expands keys to pieces.

        Returns:
            (unique_P, owner_P, class_P, local_P): index into `keys_U`, owning rank, class, row in the owner's tensor.
        """
        block_U = torch.searchsorted(self._block_start, keys_U, right=True) - 1
        if self.whole_rows:
            shard_P, unique_P = block_U, torch.arange(keys_U.numel())
        else:
            count_U = self._block_count[block_U]
            unique_P = torch.repeat_interleave(count_U)
            nth_P = torch.arange(unique_P.numel()) - (count_U.cumsum(0) - count_U)[unique_P]
            shard_P = self._block_first[block_U][unique_P] + nth_P
        local_P = keys_U[unique_P] + self._shard_delta[shard_P]
        return unique_P, self._shard_owner[shard_P], self._shard_class[shard_P], local_P

    def elements(self, counts_X: torch.Tensor) -> list[int]:
        """Elements for each peer of a message that has so many pieces of each (peer, class)."""
        sizes: list[int] = (counts_X.view(self.world, -1) @ self.widths_K).tolist()
        return sizes

    def place_columns(
        self, rows_UD: torch.Tensor, received: torch.Tensor, rows_T: torch.Tensor, counts_X: torch.Tensor
    ) -> None:
        """Puts the column blocks of a message in their rows.

        Args:
            rows_UD: changed in place.
            received: flat, (peer, class)-major.
            rows_T: row that each piece belongs to, in this order.
            counts_X: pieces of each (peer, class).
        """
        position = 0
        for cell, run in enumerate(rows_T.split(counts_X.tolist())):
            piece = self.classes[cell % len(self.classes)]
            block = received[position : position + run.numel() * piece.width].view(-1, piece.width)
            rows_UD[run, piece.col_start : piece.col_start + piece.width] = block
            position += block.numel()

    def _walk(self) -> list[tuple[int, Shard, int, int]]:
        """Every shard with its class and its offset in its owner's tensor: the one rule all ranks share."""
        filled: dict[tuple[int, int], int] = {}
        out = []
        for table, layout in enumerate(self.layouts):
            for block in layout.row_blocks():
                for shard in block:
                    piece_class = self.classes.index(_class_of(layout, shard))
                    offset = filled.get((shard.rank, piece_class), 0)
                    filled[(shard.rank, piece_class)] = offset + shard.num_rows
                    out.append((table, shard, piece_class, offset))
        return out

    def _build_routes(self, walk: list[tuple[int, Shard, int, int]]) -> None:
        starts, first, count = [], [], []
        for i, (table, shard, _, _) in enumerate(walk):
            if shard.col_start == 0:
                starts.append(int(self.bases[table]) + shard.row_start)
                first.append(i)
                count.append(0)
            count[-1] += 1
        self._block_start = torch.tensor(starts)
        self._block_first = torch.tensor(first)
        self._block_count = torch.tensor(count)
        self._shard_owner = torch.tensor([self.rank if s.rank < 0 else s.rank for _, s, _, _ in walk])
        self._shard_class = torch.tensor([piece_class for _, _, piece_class, _ in walk])
        self._shard_delta = torch.tensor([off - int(self.bases[t]) - s.row_start for t, s, _, off in walk])


def _class_of(layout: TableLayout, shard: Shard) -> PieceClass:
    return PieceClass(layout.replicated, shard.col_start, shard.num_cols)
