"""The batch that every layer agrees on: dense floats, jagged ids, labels. Building and checking it is `recpipe.data`'s job.

Shape suffixes: B rows of this rank, F features, N ids, D dense columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """Rows of one rank for one step.

    Args:
        dense_BD: float32 dense columns, finite.
        ids_N: int64 ids, feature-major: all ids of feature 0 (row 0, row 1, ...), then feature 1, ...
        lengths_FB: int32 number of ids of each feature in each row; ``lengths_FB.sum() == N``.
        labels_B: float32 labels, 0 or 1 (NaN where a file had none, in scoring).
        weights_N: float32 weight of each id, or None where no feature is weighted.
        one_hot: every length is 1; lets the embedding skip offsets.
        first_row: global position of row 0 in the epoch's order.
        num_dropped: rows removed by the bad-id or non-finite policy.
    """

    dense_BD: torch.Tensor
    ids_N: torch.Tensor
    lengths_FB: torch.Tensor
    labels_B: torch.Tensor
    weights_N: torch.Tensor | None = None
    one_hot: bool = False
    first_row: int = 0
    num_dropped: int = 0

    @property
    def num_rows(self) -> int:
        return self.labels_B.shape[0]
