"""The rows that all contestants train on: the same global batches on every rank, in turn, without end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from recpipe.batch import Batch
from recpipe.bench.settings import Workload
from recpipe.data import Dataset, open_dataset, prepare_dataset
from recpipe.data.config import SCHEMAS
from recpipe.data.synthetic.draw import draw_ids
from recpipe.errors import ConfigError

NUM_DENSE, NUM_FEATURES = 13, 26
SKEW = 1.25
"""Exponent at which 2,048 drawn rows have the share of unique ids that 2,048 Criteo rows have, .264."""


def data_config(workload: Workload) -> Any:
    """Settings of a data set with the right schema; drawn rows do not come from it."""
    if workload.ids == "real":
        made: dict[str, Any] = {"path": workload.criteo, "vocabulary": "hash", "hash_size": workload.rows}
        return OmegaConf.merge(OmegaConf.structured(SCHEMAS["criteo"]()), made)
    sizes = {"num_train": 1, "num_valid": 0, "num_test": 0, "min_ids": workload.rows, "max_ids": workload.rows}
    return OmegaConf.merge(OmegaConf.structured(SCHEMAS["synthetic"]()), sizes)


def global_batches(workload: Workload, dataset: Dataset) -> list[Batch]:
    """The batches of all ranks together, one a step.

    Raises:
        ConfigError: the file has too few rows.
    """
    if workload.ids != "real":
        return drawn(workload)
    size = workload.global_batch
    available = dataset.num_rows("train") // size
    if not available:
        raise ConfigError(f"criteo={workload.criteo}: has fewer training rows than a step of {size}")
    starts = (step % available * size for step in range(workload.num_batches))
    return [dataset.batch("train", 0, start, start + size) for start in starts]


def my_batches(batches: list[Batch], consumer: int | None, num_consumers: int) -> Iterator[Batch]:
    """The share of one consumer of each batch, round and round; nothing of them where `consumer` is None."""
    mine = []
    for batch in batches:
        cuts = (
            (0, 0) if consumer is None else tuple(batch.num_rows * c // num_consumers for c in (consumer, consumer + 1))
        )
        mine.append(batch.rows(*cuts))
    return cycle(mine)


def open_schema(workload: Workload) -> Dataset:
    """The data set behind `data_config`, prepared by rank 0; collective."""
    config = data_config(workload)
    if dist.get_rank() == 0:
        prepare_dataset(config)
    dist.barrier()
    return open_dataset(config)


def drawn(workload: Workload) -> list[Batch]:
    rng = np.random.default_rng(0)
    size, count = workload.global_batch, workload.num_batches
    exponent = SKEW if workload.ids == "skewed" else 0.0
    ids = np.stack([draw_ids(workload.rows, size * count, exponent, 0.0, rng) for _ in range(NUM_FEATURES)])
    dense = rng.standard_normal((count, size, NUM_DENSE), dtype=np.float32)
    labels = (rng.random((count, size)) < 0.25).astype(np.float32)
    return [
        Batch(
            dense_BD=torch.from_numpy(dense[step]),
            ids_N=torch.from_numpy(ids[:, step * size : (step + 1) * size].astype(np.int64).reshape(-1)),
            lengths_FB=torch.ones(NUM_FEATURES * size, dtype=torch.int32),
            labels_B=torch.from_numpy(labels[step]),
            one_hot=True,
        )
        for step in range(count)
    ]
