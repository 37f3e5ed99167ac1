"""The synthetic data set: drawn in memory, the same for every rank of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from recpipe.data.config import SyntheticData
from recpipe.data.dataset import SPLITS, Dataset
from recpipe.data.multi_hot import with_multi_hot
from recpipe.data.rows import MemoryStore, Rows
from recpipe.data.score import auc, logloss
from recpipe.data.statistics import feature_statistics
from recpipe.data.synthetic.draw import draw_dense, draw_ids, draw_lengths, table_sizes
from recpipe.data.synthetic.teacher import Teacher, logits, probability
from recpipe.errors import ConfigError
from recpipe.specs import Feature, Schema


def synthetic_dataset(config: SyntheticData, seed: int) -> Dataset:
    """Draw all rows, label them by the teacher, and score the teacher on the test rows.

    Raises:
        ConfigError: sizes that make no sense.
    """
    _check(config)
    rng = np.random.default_rng(config.teacher_seed or seed)
    sizes = table_sizes(config)
    counts = [config.num_train, config.num_valid, config.num_test]
    teacher = Teacher.draw(config, sizes, rng)
    rows, chances = _draw(config, sizes, teacher, sum(counts), rng)
    bounds = np.cumsum([0, *counts])
    stores = {split: MemoryStore.of(cut(rows, *bounds[i : i + 2])) for i, split in enumerate(SPLITS)}
    schema, read = with_multi_hot(config, _schema(config, sizes, rows), stores)
    labels, best = rows.labels[bounds[2] :], chances[bounds[2] :]
    return Dataset(
        schema,
        read,
        _describe(config),
        config,
        seed,
        feature_statistics(schema, read["train"]),
        {"auc": auc(labels, best), "logloss": logloss(labels, best)} if config.num_test else None,
    )


def _draw(
    config: SyntheticData, sizes: list[int], teacher: Teacher, num_rows: int, rng: np.random.Generator
) -> tuple[Rows, np.ndarray]:
    """All rows and the teacher's probability of a positive label for each."""
    lengths = draw_lengths(config, num_rows, rng)
    every = np.arange(num_rows)
    owners = [every if lengths is None else np.repeat(every, lengths[:, f]) for f in range(config.num_features)]
    ids = [
        draw_ids(size, len(rows), config.zipf, config.missing_share, rng)
        for size, rows in zip(sizes, owners, strict=True)
    ]
    dense = draw_dense(config, num_rows, rng)
    chances = probability(logits(*teacher.parts(dense, ids, owners), config))
    labels = (rng.random(num_rows) < chances).astype(np.float32)
    flat = np.stack(ids, axis=1) if lengths is None else _row_major(ids, lengths)
    return Rows(dense, flat, labels, lengths), chances


def _row_major(ids: list[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """The ids of all features, flat, row by row."""
    num_rows, num_features = lengths.shape
    row = np.concatenate([np.repeat(np.arange(num_rows), lengths[:, f]) for f in range(num_features)])
    return np.concatenate(ids)[np.argsort(row, kind="stable")]


def cut(rows: Rows, start: int, stop: int) -> Rows:
    """Rows [start, stop)."""
    if rows.lengths is None:
        return Rows(rows.dense[start:stop], rows.ids[start:stop], rows.labels[start:stop])
    first, last = (int(rows.lengths[:end].sum(dtype=np.int64)) for end in (start, stop))
    return Rows(rows.dense[start:stop], rows.ids[first:last], rows.labels[start:stop], rows.lengths[start:stop])


def _schema(config: SyntheticData, sizes: list[int], rows: Rows) -> Schema:
    """Features named as Criteo's."""
    means = np.ones(config.num_features) if rows.lengths is None else rows.lengths.mean(axis=0)
    features = [Feature(f"cat_{f}", size, float(means[f])) for f, size in enumerate(sizes)]
    return Schema(config.num_dense, tuple(features))


def _check(config: SyntheticData) -> None:
    """Sizes are positive and fit each other."""
    wrong: dict[str, Any] = {
        name: getattr(config, name)
        for name, least in (("num_train", 1), ("num_valid", 0), ("num_test", 0), ("num_features", 1), ("min_ids", 2))
        if getattr(config, name) < least
    }
    if config.max_ids < config.min_ids:
        wrong["max_ids"] = config.max_ids
    if not 0.0 < config.base_rate < 1.0:
        wrong["base_rate"] = config.base_rate
    if wrong:
        raise ConfigError("data: " + ", ".join(f"{name}={value} is out of range" for name, value in wrong.items()))


def _describe(config: SyntheticData) -> str:
    """One line on where the rows come from."""
    return (
        f"synthetic rows of teacher {config.teacher_seed or 'of the run seed'}: {config.num_train:,} train, "
        f"{config.num_valid:,} valid, {config.num_test:,} test (nothing is read from files)"
    )
