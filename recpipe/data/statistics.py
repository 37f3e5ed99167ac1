"""What a planner asks of a feature: how often its ids repeat, in a batch and overall."""

from __future__ import annotations

from typing import Any

import numpy as np

from recpipe.data.rows import Rows, Store
from recpipe.specs import Schema

SAMPLE = 1 << 17
BATCH_SIZES = (256, 2048, 16384, 65536)
TOP = (1, 10, 100, 1000)
MISSING_ID = 0


def feature_statistics(schema: Schema, store: Store, num_rows: int = SAMPLE) -> dict[str, Any]:
    """Statistics of the first rows of a store, by feature.

    Returns:
        ``{"sampled_rows": n, "features": {name: {...}}}``; each feature has ``num_ids``, ``mean_ids``,
        ``missing_share``, ``unique_share`` by batch size (distinct ids over lookups), ``top_share`` by k.
    """
    count = min(store.num_rows, num_rows)
    rows = store.gather(np.arange(count))
    features = {
        feature.name: {"num_ids": feature.num_ids, **_of_feature(ids, row, count)}
        for feature, (ids, row) in zip(schema.features, _by_feature(rows), strict=True)
    }
    return {"sampled_rows": count, "features": features}


def _by_feature(rows: Rows) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids of each feature and the row of each id."""
    if rows.lengths is None:
        every = np.arange(len(rows.labels))
        return [(rows.ids[:, f], every) for f in range(rows.ids.shape[1])]
    num_rows, num_features = rows.lengths.shape
    bag = np.repeat(np.arange(num_rows * num_features), rows.lengths.ravel())
    feature, row = bag % num_features, bag // num_features
    return [(rows.ids[feature == f], row[feature == f]) for f in range(num_features)]


def _of_feature(ids: np.ndarray, row: np.ndarray, num_rows: int) -> dict[str, Any]:
    """Statistics of one feature."""
    counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    lookups = max(len(ids), 1)
    return {
        "mean_ids": round(len(ids) / max(num_rows, 1), 6),
        "missing_share": round(float((ids == MISSING_ID).sum()) / lookups, 6),
        "unique_share": {str(size): _unique_share(ids, row, size) for size in BATCH_SIZES if size <= num_rows},
        "top_share": {str(k): round(float(counts[:k].sum()) / lookups, 6) for k in TOP},
    }


def _unique_share(ids: np.ndarray, row: np.ndarray, batch_size: int) -> float:
    """Distinct ids over lookups in batches of this many rows, over whole batches of the sample."""
    if not len(ids):
        return 0.0
    batch = row.astype(np.int64) // batch_size
    distinct = len(np.unique(batch * (int(ids.max()) + 1) + ids))
    return round(distinct / len(ids), 6)
