"""From raw dense values to stored ones: a transform for each column, chosen by its training rows where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from recpipe.data.prepare.columns import dense_of
from recpipe.data.prepare.spread import ColumnSpread, Spread
from recpipe.data.prepare.transform import DESCRIPTIONS, apply, standardize

LARGE, SKEWED = 10.0, 10.0


@dataclass(frozen=True)
class DenseScale:
    """How a dense column is stored.

    Args:
        transform: one of `TRANSFORMS` but auto.
        missing_as: raw value that stands for a missing one.
        mean, deviation: of training rows, where the transform is standardize.
        because: why this transform was chosen; empty where it was given.
    """

    transform: str = "none"
    missing_as: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    because: str = ""

    def of(self, values: np.ndarray) -> np.ndarray:
        """float32 stored values of raw ones."""
        if self.transform == "standardize":
            return standardize(values, self.mean, self.deviation)
        return apply(self.transform, values)

    def finish(self, column: pa.ChunkedArray) -> np.ndarray:
        """float32 stored values of a raw column."""
        return self.of(dense_of(column, self.missing_as))

    def to_json(self) -> dict[str, Any]:
        """What the manifest says of it, and `from_json` reads."""
        entry: dict[str, Any] = {"transform": self.transform, "formula": DESCRIPTIONS[self.transform]}
        if self.because:
            entry["because"] = self.because
        if self.transform == "standardize":
            entry |= {"mean": self.mean, "deviation": self.deviation}
        return entry | {"missing_as": self.missing_as}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], default: str) -> DenseScale:
        """Of a column's entry in a manifest.

        Args:
            default: the transform of manifests that have one for all columns.
        """
        transform = entry.get("transform", default)
        return cls(transform, entry.get("missing_as", 0.0), entry.get("mean", 0.0), entry.get("deviation", 1.0))


def scale_of(asked: str, missing_as: float | None, spread: ColumnSpread) -> DenseScale:
    """The scale of a column.

    Args:
        asked: one of `TRANSFORMS`.
        missing_as: the setting; None: the mean where standardized, else 0.
        spread: what was measured of the column.
    """
    name, because = choose(spread.train) if asked == "auto" else (asked, "")
    if name != "standardize":
        return DenseScale(name, missing_as or 0.0, because=because)
    assert spread.moments is not None
    mean, deviation = spread.moments.result()
    return DenseScale(name, mean if missing_as is None else missing_as, mean, deviation, because)


def choose(train: Spread) -> tuple[str, str]:
    """Transform of a column, and why: the logarithm of what has no negative value and a long tail, else standardized.

    Args:
        train: values of training rows.
    """
    if not train.count:
        return "standardize", "no training row has a value"
    median, tail = train.quantile(0.5), train.quantile(0.99)
    if train.low < 0:
        return "standardize", "it has negative values"
    if tail >= LARGE and tail >= SKEWED * max(median, 1.0):
        return (
            "log1p",
            f"no value is negative, and the 99th percentile of {tail:,g} is far above the median of {median:,g}",
        )
    return "standardize", f"the 99th percentile of {tail:,g} is not far above the median of {median:,g}"
