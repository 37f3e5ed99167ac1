"""The teacher: a logistic model of dense values, id effects and low-rank products of id vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recpipe.data.config import SyntheticData

RANK = 4
INTERACTION_SHARE = 0.1
INTERACTING_FEATURES = 3
TAIL = 0.6


@dataclass(frozen=True)
class Teacher:
    """Weights of the model that makes the labels.

    Args:
        dense: float32, one weight a dense column.
        effects: float32 effect of each id, one array a feature.
        vectors: float32 vector of each id (ids x RANK), one array a feature.
    """

    dense: np.ndarray
    effects: list[np.ndarray]
    vectors: list[np.ndarray]

    @classmethod
    def draw(cls, config: SyntheticData, sizes: list[int], rng: np.random.Generator) -> Teacher:
        """A teacher with random weights."""
        effects = [rng.standard_normal(size, dtype=np.float32) * _fading(size) for size in sizes]
        vectors = [rng.standard_normal((size, RANK), dtype=np.float32) for size in sizes]
        for number in np.argsort(sizes, kind="stable")[INTERACTING_FEATURES:]:
            vectors[number][:] = 0.0
        return cls(rng.standard_normal(config.num_dense, dtype=np.float32), effects, vectors)

    def parts(self, dense: np.ndarray, ids: list[np.ndarray], rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """First-order and product part of the score of each row.

        Args:
            dense: rows x dense columns.
            ids: ids of each feature, flat.
            rows: the row of each of those ids.
        """
        num_rows = len(dense)
        first = dense @ self.dense
        total = np.zeros((num_rows, RANK), dtype=np.float32)
        squares = np.zeros((num_rows, RANK), dtype=np.float32)
        for effect, vector, ids_of, rows_of in zip(self.effects, self.vectors, ids, rows, strict=True):
            first += _bag(effect[ids_of, None], rows_of, num_rows)[:, 0]
            pooled = _bag(vector[ids_of], rows_of, num_rows)
            total += pooled
            squares += pooled * pooled
        return first, 0.5 * (total * total - squares).sum(axis=1)


def _fading(size: int) -> np.ndarray:
    """Rare ids matter less: what no model can learn from few rows should not decide the score."""
    return np.arange(1, size + 1, dtype=np.float32) ** -TAIL


def _bag(values: np.ndarray, rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Sum of the values of each row."""
    if len(rows) == num_rows and rows[0] == 0 and rows[-1] == num_rows - 1 and bool((np.diff(rows) == 1).all()):
        return values
    columns = [np.bincount(rows, weights=values[:, c], minlength=num_rows) for c in range(values.shape[1])]
    return np.stack(columns, axis=1).astype(np.float32)


def logits(first: np.ndarray, product: np.ndarray, config: SyntheticData) -> np.ndarray:
    """Scores of all rows, scaled to the asked-for spread and shifted to the asked-for base rate."""
    first = (first - first.mean()) / (first.std() or 1.0)
    product = (product - product.mean()) / (product.std() or 1.0)
    share = INTERACTION_SHARE
    mixed = config.signal * (np.sqrt(1.0 - share) * first + np.sqrt(share) * product)
    return mixed + _shift(mixed, config.base_rate)


def _shift(scores: np.ndarray, base_rate: float) -> float:
    """The bias that gives this mean probability, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(scores + middle).mean() < base_rate else (low, middle)
    return (low + high) / 2


def probability(scores: np.ndarray) -> np.ndarray:
    """The logistic function, in float64."""
    return 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))
