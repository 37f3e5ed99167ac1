"""The dense transform: one recorded function of a value, the same for every file, finite everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from recpipe.data.config import TRANSFORMS
from recpipe.errors import ConfigError, nearest

DESCRIPTIONS = {
    "auto": "of each column, by its training rows",
    "log": "ln(max(x, -2) + 3)",
    "log1p": "ln(max(x, 0) + 1)",
    "squared_log": "floor(ln(x)^2) where x > 2, else x",
    "standardize": "(x - mean) / standard deviation, both of training rows",
    "none": "x",
}
LARGEST = float(np.finfo(np.float32).max)


def check_transforms(default: str, by_column: Mapping[str, str]) -> None:
    """Only the known ones.

    Raises:
        ConfigError: another name.
    """
    given = {"dense_transform": default, **{f"transforms.{name}": value for name, value in by_column.items()}}
    for setting, name in given.items():
        if name not in TRANSFORMS:
            raise ConfigError(f"data.{setting}={name} is unknown; {nearest(name, TRANSFORMS)}")


def check_columns(setting: str, named: Iterable[str], columns: Iterable[str], kind: str) -> None:
    """A setting by column names columns that there are.

    Args:
        setting: its name.
        named: the columns that it names.
        columns: those that it may name.
        kind: of these columns, for the message.

    Raises:
        ConfigError: a name and the nearest ones.
    """
    known = list(columns)
    for name in named:
        if name not in known:
            advice = nearest(name, known) if known else f"there are no {kind} columns"
            raise ConfigError(f"data.{setting} names {name}, which is not a {kind} column; {advice}")


def apply(name: str, values: np.ndarray) -> np.ndarray:
    """Transformed float32 values; `standardize` is left to `standardize`, which needs all training rows.

    Args:
        name: one of `TRANSFORMS`.
        values: finite numbers.
    """
    values = values.astype(np.float64)
    if name == "log":
        values = np.log(np.maximum(values, -2.0) + 3.0)
    elif name == "log1p":
        values = np.log1p(np.maximum(values, 0.0))
    elif name == "squared_log":
        values = np.where(values > 2.0, np.floor(np.log(np.maximum(values, 2.0)) ** 2), values)
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def standardize(values: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Zero mean and unit deviation; a constant column becomes 0."""
    scaled = (values.astype(np.float64) - mean) / (deviation or 1.0)
    return np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
