"""A data set: splits of rows, each read in a deterministic order, as checked batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recpipe.batch import Batch
from recpipe.data.build import to_batch
from recpipe.data.check import Policy, check_batch
from recpipe.data.config import DataConfig
from recpipe.data.encoding import Encoding
from recpipe.data.order import Order
from recpipe.data.pooling import with_pooling
from recpipe.data.rows import Store
from recpipe.errors import ConfigError, nearest
from recpipe.specs import Schema

SPLITS = ("train", "valid", "test")


class Dataset:
    """Rows of train, valid and test, by global position.

    Args:
        schema: dense columns and categorical features.
        stores: the rows of each split.
        source: one line on where the rows come from.
        config: order and policies.
        seed: seed of the order of training rows.
        statistics: of the features, for the planner.
        teacher: AUC and log loss of the model that made the labels of `test`, where there is one.
        warnings: what a user should know of the rows.
        unseen: by feature, the share of values without an id: to be expected, and in each held-out split.
        encoding: how its rows were made of raw ones; None where they were not (synthetic rows).
    """

    def __init__(
        self,
        schema: Schema,
        stores: Mapping[str, Store],
        source: str,
        config: DataConfig,
        seed: int,
        statistics: Mapping[str, Any] | None = None,
        teacher: Mapping[str, float] | None = None,
        warnings: Sequence[str] = (),
        unseen: Mapping[str, Mapping[str, float]] | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        self.schema = with_pooling(schema, config)
        self.source = source
        self.encoding = encoding
        self.teacher = dict(teacher) if teacher else None
        self.warnings, self.unseen = tuple(warnings), dict(unseen or {})
        self.policy = Policy(config.bad_ids, config.non_finite)
        self._stores = dict(stores)
        self._statistics = dict(statistics or {})
        self._orders = {
            split: Order(config.shuffle if split == "train" else "none", store.num_rows, seed, config.shuffle_rows)
            for split, store in self._stores.items()
        }

    def num_rows(self, split: str) -> int:
        """Rows of a split; 0 where the data set has none of it."""
        self._check_split(split)
        return self._stores[split].num_rows if split in self._stores else 0

    def batch(self, split: str, epoch: int, start: int, stop: int) -> Batch:
        """Rows at global positions [start, stop) of the order of `epoch`; an empty range gives an empty batch.

        Raises:
            DataError: a bad value under the policy `error`.
            ConfigError: a range outside the split.
        """
        total = self.num_rows(split)
        if not 0 <= start <= stop <= total:
            raise ConfigError(f"rows [{start}, {stop}) are outside the {total} rows of split {split}")
        rows = self._orders[split].rows(epoch, start, stop) if total else np.zeros(0, dtype=np.int64)
        store = self._stores[split] if split in self._stores else self._stores["train"]
        return check_batch(to_batch(store.gather(rows), first_row=start), self.schema, self.policy)

    def statistics(self) -> dict[str, Any]:
        """Per feature: rows, unique share by batch size, top-k share, mean ids, missing share."""
        return dict(self._statistics)

    def _check_split(self, split: str) -> None:
        """Only the three known splits."""
        if split not in SPLITS:
            raise ConfigError(f"split {split} is unknown; {nearest(split, SPLITS)}")
