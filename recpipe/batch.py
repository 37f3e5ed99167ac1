"""The batch that every layer agrees on: dense floats, jagged ids, labels. Building and checking it is `recpipe.data`'s job.

Shape suffixes: B rows of this rank, F features, N ids, D dense columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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

    def rows(self, start: int, stop: int) -> Batch:
        """Rows [start, stop) as a batch of their own."""
        if (start, stop) == (0, self.num_rows):
            return self
        features = self.lengths_FB.numel() // max(self.num_rows, 1)
        lengths_FB = self.lengths_FB.view(features, -1)[:, start:stop].reshape(-1)
        keep_N = self._lookups_of(features, start, stop)
        return Batch(
            dense_BD=self.dense_BD[start:stop],
            ids_N=self.ids_N[keep_N],
            lengths_FB=lengths_FB,
            labels_B=self.labels_B[start:stop],
            weights_N=None if self.weights_N is None else self.weights_N[keep_N],
            one_hot=self.one_hot,
            first_row=self.first_row + start,
        )

    def features(self, chosen: Sequence[int]) -> Batch:
        """The same rows with the chosen features only, in the order given."""
        total = self.lengths_FB.numel() // max(self.num_rows, 1)
        if list(chosen) == list(range(total)) or self.num_rows == 0:
            return self
        lengths = self.lengths_FB.view(total, -1)
        per_feature = lengths.sum(1).tolist()
        ids = self.ids_N.split(per_feature)
        weights = None if self.weights_N is None else self.weights_N.split(per_feature)
        return replace(
            self,
            ids_N=torch.cat([ids[f] for f in chosen]),
            lengths_FB=lengths[list(chosen)].reshape(-1),
            weights_N=None if weights is None else torch.cat([weights[f] for f in chosen]),
        )

    def microbatches(self, count: int) -> list[Batch]:
        """`count` pieces of nearly equal size, in row order; some are empty where there are fewer rows than pieces."""
        cuts = [self.num_rows * m // count for m in range(count + 1)]
        return [self.rows(start, stop) for start, stop in pairwise(cuts)]

    def _lookups_of(self, features: int, start: int, stop: int) -> torch.Tensor:
        """Positions of the lookups of rows [start, stop)."""
        index = torch.arange(self.ids_N.numel())
        if self.one_hot:
            return index.view(features, -1)[:, start:stop].reshape(-1)
        row_N = (torch.arange(self.lengths_FB.numel()) % self.num_rows).repeat_interleave(self.lengths_FB)
        return index[(row_N >= start) & (row_N < stop)]


def join_batches(parts: Sequence[Batch], num_features: int) -> Batch:
    """One batch of consecutive parts, in the order given.

    Args:
        parts: at least one; all weighted or none.
        num_features: F.
    """
    if len(parts) == 1:
        return parts[0]
    lengths = [part.lengths_FB.view(num_features, -1) for part in parts]
    runs = [length.sum(1).tolist() for length in lengths]

    def by_feature(columns: Sequence[torch.Tensor]) -> torch.Tensor:
        split = [column.split(run) for column, run in zip(columns, runs, strict=True)]
        return torch.cat([pieces[f] for f in range(num_features) for pieces in split])

    weights = [part.weights_N for part in parts if part.weights_N is not None]
    return Batch(
        dense_BD=torch.cat([part.dense_BD for part in parts]),
        ids_N=by_feature([part.ids_N for part in parts]),
        lengths_FB=torch.cat(lengths, dim=1).flatten(),
        labels_B=torch.cat([part.labels_B for part in parts]),
        weights_N=by_feature(weights) if weights else None,
        one_hot=all(part.one_hot for part in parts),
        first_row=parts[0].first_row,
        num_dropped=sum(part.num_dropped for part in parts),
    )
