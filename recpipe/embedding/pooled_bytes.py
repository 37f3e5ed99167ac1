"""Counts what the pooled exchange sends, from the layouts: TorchRec's collectives do not pass through our lanes.

Ids and weights of a lookup go to every column block of their row; a bag comes back as one partial sum a shard, and its
gradient goes the other way. Lengths travel with the ids, one int32 a bag and shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recpipe.embedding.lanes import LaneLike
from recpipe.embedding.layout import TableLayout

_ID_BYTES, _LENGTH_BYTES, _FLOAT_BYTES = 8 + 4, 4, 4


class PooledBytes:
    """Counter for one rank.

    Args:
        layouts: of the pooled tables.
        rank, world: this rank and the number of ranks.
    """

    def __init__(self, layouts: Sequence[TableLayout], rank: int, world: int) -> None:
        self._layouts, self._rank, self._world = layouts, rank, world

    def count(self, lane: LaneLike, lengths_FB: torch.Tensor, ids_N: torch.Tensor, padded: int) -> None:
        """Adds one step to the lane's traffic.

        Args:
            lengths_FB, ids_N: what this rank looks up.
            padded: rows of the step on every rank.
        """
        per_feature = lengths_FB.view(len(self._layouts), -1).sum(1).tolist()
        ids, rows, gradients = 0, 0, 0
        for layout, run in zip(self._layouts, ids_N.split(per_feature), strict=True):
            for shard in layout.shards:
                bag_bytes = padded * shard.num_cols * _FLOAT_BYTES
                if shard.rank == self._rank:
                    rows += (self._world - 1) * bag_bytes
                    continue
                inside = int(((run >= shard.row_start) & (run < shard.row_stop)).sum())
                ids += inside * _ID_BYTES + padded * _LENGTH_BYTES
                gradients += bag_bytes
        lane.count("ids", ids)
        lane.count("rows", rows)
        lane.count("row_gradients", gradients)
