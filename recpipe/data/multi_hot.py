"""Synthetic multi-hot rows as MLPerf's DLRM-DCNv2 has them: each one-hot id stands for a fixed bag of ids of its table.

The bag is a hash of (seed, feature, id, slot), computed where a row is read. MLPerf draws one table of bags a feature; for its
sizes these tables are 23 GB in every process, and rows that are expanded on disk take four terabytes instead of 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recpipe.data.config import MULTI_HOT_DISTRIBUTIONS, DataConfig
from recpipe.data.permutation import GOLDEN, key_of, mix
from recpipe.data.rows import Rows, Store
from recpipe.errors import ConfigError, nearest
from recpipe.specs import Schema

# Of MLPerf's draw; Lomax, the minimum is 0.
PARETO_SHAPE = 0.25


@dataclass(frozen=True)
class MultiHot:
    """From an id to its bag.

    Args:
        sizes: ids of a bag, one number a feature; the first id of a bag is the id itself.
        num_ids: rows of each table.
        distribution: of the other ids: uniform, or pareto (shape 0.25, folded into the table).
        seed: chooses the bags.
    """

    sizes: tuple[int, ...]
    num_ids: tuple[int, ...]
    distribution: str
    seed: int

    def bags(self, feature: int, ids_B: np.ndarray) -> np.ndarray:
        """Bags of some ids of a feature, int64, rows x size."""
        slots = np.arange(1, self.sizes[feature], dtype=np.uint64)
        first = mix(ids_B.astype(np.uint64) ^ np.uint64(key_of(self.seed, feature)))
        words = mix(first[:, None] + slots * np.uint64(GOLDEN))
        return np.concatenate([ids_B[:, None].astype(np.int64), self._ids(words, self.num_ids[feature])], axis=1)

    def _ids(self, words: np.ndarray, size: int) -> np.ndarray:
        """Ids in [0, size) from random 64-bit words."""
        if self.distribution == "uniform":
            return (words % np.uint64(size)).astype(np.int64)
        chances = ((words >> np.uint64(11)).astype(np.float64) + 1.0) / 2.0**53
        return np.fmod(np.floor(chances ** (-1.0 / PARETO_SHAPE) - 1.0), size).astype(np.int64)


@dataclass(frozen=True)
class MultiHotStore:
    """A store of one-hot rows, read as multi-hot ones."""

    one_hot: Store
    multi_hot: MultiHot

    @property
    def num_rows(self) -> int:
        return self.one_hot.num_rows

    def gather(self, rows: np.ndarray) -> Rows:
        """The rows at these stored positions, each id as its bag."""
        found = self.one_hot.gather(rows)
        bags = [self.multi_hot.bags(feature, found.ids[:, feature]) for feature in range(found.ids.shape[1])]
        lengths = np.tile(np.array(self.multi_hot.sizes, dtype=np.int32), (len(rows), 1))
        return Rows(found.dense, np.concatenate(bags, axis=1).ravel(), found.labels, lengths)


def multi_hot_of(config: DataConfig, schema: Schema) -> MultiHot:
    """The expansion that the settings ask for.

    Raises:
        ConfigError: an unknown distribution, or a wrong number of sizes.
    """
    sizes, kind = tuple(config.multi_hot_sizes), config.multi_hot_distribution
    if kind not in MULTI_HOT_DISTRIBUTIONS:
        raise ConfigError(f"data.multi_hot_distribution={kind} is unknown; {nearest(kind, MULTI_HOT_DISTRIBUTIONS)}")
    if len(sizes) != len(schema.features) or min(sizes) < 1:
        raise ConfigError(
            f"data.multi_hot_sizes has {len(sizes)} numbers, the smallest {min(sizes)}; the data set has "
            f"{len(schema.features)} features: give one number of at least 1 for each, in order"
        )
    return MultiHot(sizes, tuple(feature.num_ids for feature in schema.features), kind, config.multi_hot_seed)


def with_multi_hot(config: DataConfig, schema: Schema, stores: Mapping[str, Store]) -> tuple[Schema, dict[str, Store]]:
    """Schema and stores as they are, or expanded where `data.multi_hot_sizes` is set.

    Raises:
        ConfigError: settings that do not fit the data, or rows that are multi-hot already.
    """
    if not config.multi_hot_sizes:
        return schema, dict(stores)
    if any(store.gather(np.zeros(0, dtype=np.int64)).lengths is not None for store in stores.values()):
        raise ConfigError("data.multi_hot_sizes expands one-hot rows, and these are multi-hot as stored; leave it out")
    multi_hot = multi_hot_of(config, schema)
    features = tuple(
        replace(feature, mean_ids=float(size)) for feature, size in zip(schema.features, multi_hot.sizes, strict=True)
    )
    expanded: dict[str, Store] = {split: MultiHotStore(store, multi_hot) for split, store in stores.items()}
    return Schema(schema.num_dense, features), expanded
