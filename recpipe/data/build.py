"""From rows as they are stored (row-major, numpy) to a batch (feature-major, torch)."""

from __future__ import annotations

import numpy as np
import torch

from recpipe.batch import Batch
from recpipe.data.rows import Rows


def to_batch(rows: Rows, first_row: int) -> Batch:
    """The same rows as a feature-major batch of torch tensors."""
    if rows.lengths is None:
        num_rows, num_features = rows.ids.shape
        ids = rows.ids.T.astype(np.int64).ravel()
        return Batch(
            dense_BD=torch.from_numpy(rows.dense),
            ids_N=torch.from_numpy(ids),
            lengths_FB=torch.from_numpy(np.ones(num_features * num_rows, dtype=np.int32)),
            labels_B=torch.from_numpy(rows.labels),
            one_hot=True,
            first_row=first_row,
        )
    by_feature = _feature_major(rows.lengths)
    return Batch(
        dense_BD=torch.from_numpy(rows.dense),
        ids_N=torch.from_numpy(rows.ids[by_feature].astype(np.int64)),
        lengths_FB=torch.from_numpy(rows.lengths.T.astype(np.int32).ravel()),
        labels_B=torch.from_numpy(rows.labels),
        weights_N=None if rows.weights is None else torch.from_numpy(rows.weights[by_feature]),
        first_row=first_row,
    )


def _feature_major(lengths: np.ndarray) -> np.ndarray:
    """Positions of the row-major ids in feature-major order."""
    num_rows, num_features = lengths.shape
    if num_rows and (lengths == lengths[0]).all():
        ends = np.cumsum(lengths[0])
        slots = np.arange(num_rows * ends[-1]).reshape(num_rows, -1)
        return np.concatenate([slots[:, end - size : end].ravel() for end, size in zip(ends, lengths[0], strict=True)])
    feature = np.repeat(np.tile(np.arange(num_features, dtype=np.uint16), num_rows), lengths.ravel())
    return np.argsort(feature, kind="stable")
