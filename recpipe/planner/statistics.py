"""How often ids repeat: for every table the expected number of different rows among n lookups, and where they lie.

Ids are drawn by a power law of their frequency rank whose exponent is fitted to the measured unique shares of the data
set, or stated. Between and beyond the measured batch sizes the law is scaled to go through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from recpipe.specs import TableSpec

_EXACT, _BINS = 128, 160
_EXPONENTS = tuple(round(0.05 * k, 2) for k in range(61))


@dataclass(frozen=True)
class Demand:
    """What a step asks of one table.

    Args:
        spec: the table.
        mean_ids: lookups a row of data (the pooling factor).
        skew: exponent of the power law; 0 is uniform.
        by_frequency: id order is frequency order, so that the first row blocks are the busy ones; else ids are mixed.
        seen: measured (lookups, unique share) pairs that the law is scaled to.
    """

    spec: TableSpec
    mean_ids: float = 1.0
    skew: float = 1.05
    by_frequency: bool = True
    seen: tuple[tuple[float, float], ...] = ()

    def unique(self, num_rows: float) -> float:
        """Different rows that `num_rows` rows of data touch."""
        lookups = num_rows * self.mean_ids
        return (
            self._scale(lookups) * float(_law(self.spec.num_rows, self.skew).touched(lookups)[-1]) if lookups else 0.0
        )

    def unique_share(self, num_rows: float) -> float:
        """Different rows over lookups."""
        lookups = num_rows * self.mean_ids
        return self.unique(num_rows) / lookups if lookups else 0.0

    def unique_in(self, num_rows: float, edges: Sequence[int]) -> np.ndarray:
        """Different rows in each block ``[edges[i], edges[i+1])`` of the table's rows."""
        return self.unique(num_rows) * self._shares(num_rows, edges, touched=True)

    def lookups_in(self, num_rows: float, edges: Sequence[int]) -> np.ndarray:
        """Lookups in each block of rows."""
        return num_rows * self.mean_ids * self._shares(num_rows, edges, touched=False)

    def early_share(self, consumer_rows: float, global_rows: float) -> float:
        """Share of a consumer's unique rows that the step before, of all consumers, does not touch."""
        law = _law(self.spec.num_rows, self.skew)
        mine = law.probability(consumer_rows * self.mean_ids)
        before = law.probability(global_rows * self.mean_ids)
        total = float((law.width * mine).sum())
        return float((law.width * mine * (1 - before)).sum()) / total if total else 1.0

    def _shares(self, num_rows: float, edges: Sequence[int], touched: bool) -> np.ndarray:
        cuts = np.asarray(edges, dtype=np.float64)
        if not self.by_frequency:
            return np.diff(cuts) / max(self.spec.num_rows, 1)
        law = _law(self.spec.num_rows, self.skew)
        cumulative = law.touched(num_rows * self.mean_ids) if touched else law.mass
        total = cumulative[-1]
        at = np.interp(cuts, law.edges, cumulative)
        return np.diff(at) / total if total else np.zeros(len(cuts) - 1)

    def _scale(self, lookups: float) -> float:
        """Measured over predicted unique rows, between the measured sizes and held beyond them; never more rows than exist."""
        if not self.seen:
            return 1.0
        law = _law(self.spec.num_rows, self.skew)
        sizes = [size for size, _ in self.seen]
        ratios = [size * share / max(float(law.touched(size)[-1]), 1e-9) for size, share in self.seen]
        scale = float(np.interp(np.log(lookups), np.log(sizes), ratios))
        top = min(float(self.spec.num_rows), lookups) / max(float(law.touched(lookups)[-1]), 1e-9)
        return min(scale, top)


class _Law:
    """A power law over N rows: the first rows one by one, the rest in bins of equal ratio."""

    def __init__(self, num_rows: int, skew: float) -> None:
        exact = min(num_rows, _EXACT)
        edges = np.arange(exact + 1, dtype=np.float64)
        if num_rows > exact:
            more = np.geomspace(exact, num_rows, _BINS + 1)[1:]
            edges = np.concatenate([edges, more])
        self.edges = edges
        self.width = np.diff(edges)
        weight = (edges[:-1] + self.width / 2 + 0.5) ** -skew
        self.p = weight / (weight * self.width).sum()
        self.mass = np.concatenate([[0.0], np.cumsum(self.p * self.width)])

    def probability(self, lookups: float) -> np.ndarray:
        """Of each bin's rows to be touched by so many lookups."""
        with np.errstate(divide="ignore"):
            return -np.expm1(lookups * np.log1p(-np.minimum(self.p, 1.0)))

    def touched(self, lookups: float) -> np.ndarray:
        """Expected number of different rows before each edge."""
        return np.concatenate([[0.0], np.cumsum(self.width * self.probability(lookups))])


@lru_cache(maxsize=4096)
def _law(num_rows: int, skew: float) -> _Law:
    return _Law(num_rows, skew)


def fit_skew(num_rows: int, seen: Sequence[tuple[float, float]]) -> float:
    """The exponent whose unique shares are nearest to the measured (lookups, share) pairs, in logarithms."""
    if not seen or num_rows < 2:
        return 1.0

    def error(skew: float) -> float:
        law = _Law(num_rows, skew)
        found = [float(law.touched(size)[-1]) / size for size, _ in seen]
        return float(
            sum((np.log(max(a, 1e-12)) - np.log(max(b, 1e-12))) ** 2 for a, (_, b) in zip(found, seen, strict=True))
        )

    return min(_EXPONENTS, key=error)


def measured_demands(
    specs: Sequence[TableSpec], statistics: Mapping[str, Any], by_frequency: bool
) -> tuple[Demand, ...]:
    """Demands from a data set's statistics, ``Dataset.statistics()``.

    Args:
        specs: one a feature.
        by_frequency: whether ids are numbered by frequency.
    """
    features = statistics["features"]
    return tuple(_measured(spec, features[spec.feature], by_frequency) for spec in specs)


def _measured(spec: TableSpec, entry: Mapping[str, Any], by_frequency: bool) -> Demand:
    mean = max(float(entry["mean_ids"]), 1e-6)
    pairs = sorted((int(size) * mean, float(share)) for size, share in entry["unique_share"].items())
    seen = tuple((lookups, share) for lookups, share in pairs if share > 0)
    return Demand(spec, mean, fit_skew(spec.num_rows, seen), by_frequency, seen)


@dataclass
class WorkloadSettings:
    """Group `workload`: tables stated instead of read from data.

    Args:
        num_embeddings_per_feature: rows of each table; empty: take tables and statistics from the data set.
        multi_hot_sizes: pooling factor of each table, or one for all; empty: 1.
        skew: exponent of the id frequencies, for each table or one for all.
        num_dense: dense columns.
        by_frequency: ids are numbered by frequency.
    """

    num_embeddings_per_feature: list[int] = field(default_factory=list)
    multi_hot_sizes: list[float] = field(default_factory=list)
    skew: list[float] = field(default_factory=lambda: [1.05])
    num_dense: int = 13
    by_frequency: bool = True


def stated_demands(
    specs: Sequence[TableSpec], mean_ids: Sequence[float], skew: Sequence[float], by_frequency: bool
) -> tuple[Demand, ...]:
    """Demands from stated numbers, one a table."""
    return tuple(Demand(s, m, k, by_frequency) for s, m, k in zip(specs, mean_ids, skew, strict=True))
