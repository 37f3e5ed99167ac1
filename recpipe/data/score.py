"""AUC and log loss of pooled scores, for the teacher of synthetic rows."""

from __future__ import annotations

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a positive row scores above a negative one; ties count half. NaN with one class only."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2
    positive = labels == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return float("nan")
    total = float(rank[inverse[positive]].sum())
    return (total - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def logloss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log likelihood, in nats."""
    chances = probabilities.astype(np.float64).clip(1e-15, 1 - 1e-15)
    return float(-np.where(labels == 1, np.log(chances), np.log1p(-chances)).mean())
