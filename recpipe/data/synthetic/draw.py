"""Ids with heavy-tailed frequencies, dense values with a heavy tail, and missing ones among both."""

from __future__ import annotations

import numpy as np

from recpipe.data.config import SyntheticData

MISSING_ID = 0


def table_sizes(config: SyntheticData) -> list[int]:
    """Rows of each table: from the smallest to the largest by equal ratios, in mixed order."""
    exponents = np.linspace(0.0, 1.0, config.num_features) if config.num_features > 1 else np.ones(1)
    sizes = config.min_ids * (config.max_ids / config.min_ids) ** exponents
    mixed = np.random.default_rng(0).permutation(np.rint(sizes).astype(int))
    return [int(size) for size in mixed]


def draw_lengths(config: SyntheticData, num_rows: int, rng: np.random.Generator) -> np.ndarray | None:
    """int32 ids per row and feature (rows x features), or None where all are one-hot."""
    if config.mean_ids == 1.0 or config.multi_hot_features == 0:
        return None
    lengths = np.ones((num_rows, config.num_features), dtype=np.int32)
    multi = min(config.multi_hot_features, config.num_features)
    lengths[:, -multi:] = rng.poisson(config.mean_ids, (num_rows, multi))
    return lengths


def draw_ids(size: int, count: int, zipf: float, missing: float, rng: np.random.Generator) -> np.ndarray:
    """int32 ids of one feature: 0 is missing, the others follow a power law of their rank."""
    if size <= 1:
        return np.zeros(count, dtype=np.int32)
    weights = np.arange(1, size, dtype=np.float64) ** -zipf
    cumulative = np.cumsum(weights / weights.sum())
    ids = 1 + np.searchsorted(cumulative, rng.random(count, dtype=np.float32)).clip(max=size - 2)
    ids[rng.random(count, dtype=np.float32) < missing] = MISSING_ID
    return ids.astype(np.int32)


def draw_dense(config: SyntheticData, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """float32 dense columns: the logarithm of a heavy-tailed count, 0 where missing."""
    values = np.abs(rng.standard_normal((num_rows, config.num_dense), dtype=np.float32))
    values[rng.random(values.shape, dtype=np.float32) < config.missing_share] = 0.0
    return values
