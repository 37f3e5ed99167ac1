"""How the values of a dense column lie: counts in fixed bins, so that cuts of the input do not show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recpipe.data.prepare.moments import Moments
from recpipe.data.prepare.transform import LARGEST

BINS = 1 << 16
BIN_WIDTH = 1 / 128


def bins_of(values: np.ndarray) -> np.ndarray:
    """The bin of each value, in the order of the values: sign, exponent and seven bits of the mantissa of its float32."""
    with np.errstate(over="ignore"):
        # Adding zero makes one zero of the two.
        words = (values.astype(np.float32) + np.float32(0.0)).view(np.uint32) >> np.uint32(16)
    return np.where(words >= BINS // 2, BINS - 1 - words, words + BINS // 2)


def values_of(bins: np.ndarray) -> np.ndarray:
    """float64 value that stands for each bin: the one nearest to zero; whole numbers up to 256 stand for themselves."""
    words = np.where(bins < BINS // 2, BINS - 1 - bins, bins - BINS // 2).astype(np.uint32)
    return (words << np.uint32(16)).view(np.float32).astype(np.float64)


@dataclass
class Spread:
    """Counts of the values of one column in some rows.

    Args:
        bins: how many values lie in each bin.
        missing: rows without a value.
        low, high: smallest and largest value.
    """

    bins: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    missing: int = 0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, values: np.ndarray, missing: int) -> None:
        """Takes in values that are not missing, and the number of rows where one is."""
        self.missing += missing
        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
            self.bins += np.bincount(bins_of(values), minlength=BINS)

    @property
    def count(self) -> int:
        """Rows with a value."""
        return int(self.bins.sum())

    @property
    def missing_share(self) -> float:
        """Share of rows without a value; 0 without rows."""
        return self.missing / max(1, self.missing + self.count)

    def quantile(self, share: float) -> float:
        """A value that this share of the values does not exceed, up to the width of a bin; 0 without values."""
        if not self.count:
            return 0.0
        after = np.cumsum(self.bins)
        at = int(np.searchsorted(after, max(1.0, share * self.count)))
        return min(max(float(values_of(np.array([at]))[0]), self.low), self.high)

    def share_outside(self, low: float, high: float) -> float:
        """Share of the values in bins that lie wholly below `low` or above `high`."""
        used = np.flatnonzero(self.bins)
        near = values_of(used).clip(self.low, self.high)
        far = (values_of(used) * (1 + BIN_WIDTH)).clip(self.low, self.high)
        outside = (np.maximum(near, far) < low) | (np.minimum(near, far) > high)
        return float(self.bins[used[outside]].sum()) / max(1, self.count)

    def to_json(self) -> dict[str, Any]:
        """What the manifest keeps."""
        count = self.count
        ends = {"min": self.low, "max": self.high} if count else {"min": None, "max": None}
        return {"values": count, "missing": self.missing, **ends, "median": self.quantile(0.5) if count else None}


@dataclass
class ColumnSpread:
    """All that is measured of a dense column.

    Args:
        train, held_out: its values in training rows, and in the others.
        moments: of training rows, where they are asked for.
        fill: raw value that takes the place of a missing one in `moments`; None: missing ones are left out.
        ascending: no value of the rows so far, in file order, is smaller than the one before.
    """

    train: Spread = field(default_factory=Spread)
    held_out: Spread = field(default_factory=Spread)
    moments: Moments | None = None
    fill: float | None = None
    ascending: bool = True
    _last: float = float("-inf")

    def add(self, values: np.ndarray, missing: np.ndarray | None, train: np.ndarray | None) -> None:
        """Takes in the values of some rows, in file order.

        Args:
            values: one a row.
            missing: where there is none; None: nowhere.
            train: where a row is a training row; None: everywhere.
        """
        self._follow(values if missing is None else values[~missing])
        if train is None:
            self._add(self.train, values, missing)
            if self.moments is not None:
                self.moments.add(self._for_moments(values, missing))
            return
        for spread, chosen in ((self.train, train), (self.held_out, ~train)):
            self._add(spread, values[chosen], None if missing is None else missing[chosen])
        if self.moments is not None:
            self.moments.add(self._for_moments(values[train], None if missing is None else missing[train]))

    @staticmethod
    def _add(spread: Spread, values: np.ndarray, missing: np.ndarray | None) -> None:
        spread.add(values if missing is None else values[~missing], 0 if missing is None else int(missing.sum()))

    def _for_moments(self, values: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        if missing is not None:
            values = values[~missing] if self.fill is None else np.where(missing, self.fill, values)
        return values.clip(-LARGEST, LARGEST)

    def _follow(self, values: np.ndarray) -> None:
        """Whether the rows are in the order of this column."""
        if self.ascending and len(values):
            self.ascending = bool(values[0] >= self._last and (np.diff(values) >= 0).all())
            self._last = float(values[-1])
