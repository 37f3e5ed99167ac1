"""What values of a table stand for: missing numbers, positive labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def missing_numbers(values: np.ndarray, missing: np.ndarray, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Values with 0 where one is missing, and where that is: also where a text for missing is this number or NaN.

    Args:
        values: float64.
        missing: where a value is known to be missing.
        texts: that stand for a missing value.
    """
    numbers = [number for number in map(_number, texts) if number is not None]
    if any(map(math.isnan, numbers)) and np.isnan(values).any():
        missing = missing | np.isnan(values)
    for number in numbers:
        if number in values:
            missing = missing | (values == number)
    return (np.where(missing, 0.0, values) if missing.any() else values), missing


def positive_labels(column: pa.Array, positive: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """1 where a text is among the positive ones or is the same number, else 0; and where there is none.

    Args:
        column: binary values.
        positive: texts.
    """
    encoded = column.dictionary_encode()
    texts = [value.decode("utf-8", "replace").strip() for value in encoded.dictionary.to_pylist()]
    numbers = {number for number in map(_number, positive) if number is not None}
    is_positive = np.array([t in positive or _number(t) in numbers for t in texts] + [False])
    empty = np.array([not text for text in texts] + [True])
    codes = np.asarray(encoded.indices.fill_null(len(texts))).astype(np.int64)
    return is_positive[codes].astype(np.float64), empty[codes]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
