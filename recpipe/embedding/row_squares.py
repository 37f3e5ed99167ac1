"""Row-wise Adagrad keeps one state a row: the mean over the *whole* row of the squared gradient.

A rank that holds some columns of a row knows only its part of the sum. The owners of a row block receive the same row
numbers in the same order (a consumer asks every column block of a row), so they exchange one float a row, without sizes.
TorchRec instead keeps a state a column shard, which is another trajectory than that of the unsharded table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recpipe.embedding.lanes import LaneLike
from recpipe.embedding.rowmap import RowMap


@dataclass(frozen=True)
class _Cut:
    """A row block that this rank shares with others.

    Args:
        owners: rank of each column block, in column order.
        mine: (place in `owners`, class, offset, rows) of the shards held here.
    """

    owners: tuple[int, ...]
    mine: tuple[tuple[int, int, int, int], ...]


class RowSquares:
    """Completes row sums over column blocks.

    Args:
        rowmap: where shards lie.
        lane: the lane of row gradients.
    """

    def __init__(self, rowmap: RowMap, lane: LaneLike) -> None:
        self._dim = rowmap.dim
        self._lane = lane
        self._any = not rowmap.whole_rows
        offsets = {(local.table, local.shard): local for local in rowmap.local_shards}
        self._cuts = []
        for table, layout in enumerate(rowmap.layouts):
            for block in layout.row_blocks():
                held = [(j, offsets[(table, s)]) for j, s in enumerate(block) if (table, s) in offsets]
                if len(block) > 1 and held:
                    mine = tuple((j, h.piece_class, h.offset, h.shard.num_rows) for j, h in held)
                    self._cuts.append(_Cut(tuple(s.rank for s in block), mine))

    def mean_squares(self, touched: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        """Mean squared gradient over the whole row.

        Args:
            touched: for each class the unique rows (ascending) and their gradients.

        Returns:
            For each class one value a touched row, bit-identical on all owners of a row.
        """
        sums = [grad_UD.square().sum(1) for _, grad_UD in touched]
        if self._any:
            self._complete(sums, [rows_U for rows_U, _ in touched])
        return [total.div_(self._dim) for total in sums]

    def _complete(self, sums: list[torch.Tensor], rows: list[torch.Tensor]) -> None:
        spans = [[_span(rows[k], offset, count) for _, k, offset, count in cut.mine] for cut in self._cuts]
        parts = [
            {j: sums[k][span] for (j, k, _, _), span in zip(cut.mine, cut_spans, strict=True)}
            for cut, cut_spans in zip(self._cuts, spans, strict=True)
        ]
        self._swap(parts, sums[0])
        for cut, cut_spans, columns in zip(self._cuts, spans, parts, strict=True):
            total = torch.stack([columns[j] for j in range(len(cut.owners))]).sum(0)
            for (_, k, _, _), span in zip(cut.mine, cut_spans, strict=True):
                sums[k][span] = total

    def _swap(self, parts: list[dict[int, torch.Tensor]], like: torch.Tensor) -> None:
        """Sends own column sums to the other owners and adds theirs to `parts`."""
        outgoing: dict[int, list[torch.Tensor]] = defaultdict(list)
        incoming: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for index, cut in enumerate(self._cuts):
            length = next(iter(parts[index].values())).numel()
            for peer in sorted(set(cut.owners) - {self._lane.rank}):
                outgoing[peer].extend(parts[index][j] for j, *_ in cut.mine)
                incoming[peer].extend((index, j, length) for j, rank in enumerate(cut.owners) if rank == peer)
        world = range(self._lane.world)
        send = torch.cat([like.new_empty(0), *(part for peer in world for part in outgoing[peer])])
        received = self._lane.all_to_all(
            send,
            [sum(part.numel() for part in outgoing[peer]) for peer in world],
            [sum(length for _, _, length in incoming[peer]) for peer in world],
        ).wait()
        position = 0
        for peer in world:
            for index, j, length in incoming[peer]:
                parts[index][j] = received[position : position + length]
                position += length


def _span(rows_U: torch.Tensor, offset: int, count: int) -> slice:
    """Where rows [offset, offset + count) lie in the ascending `rows_U`."""
    start, stop = torch.searchsorted(rows_U, torch.tensor([offset, offset + count])).tolist()
    return slice(start, stop)
