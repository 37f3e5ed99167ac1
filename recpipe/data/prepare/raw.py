"""What parsing produces: typed columns of one chunk, and the lines that did not parse.

The columns of a raw table, in order: `label` (float32, null where a file has none), `dense` columns (float64 as they were
read, null where missing), categorical columns (unsigned keys, null where missing; lists of keys for multi-valued ones),
weights, carried columns (as in the file).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from recpipe.errors import ConfigError, nearest
from recpipe.escapes import printable

LABEL = "label"
CARRIED = "carried."
"""Begins the names of columns that are kept as they are."""
SHOWN = 160
SAMPLED = 32


@dataclass(frozen=True)
class BadLine:
    """A line that went to quarantine: its number in the chunk (from 0), why, and how it begins."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class DenseRange:
    """Raw values of a dense column: smallest, largest, number missing."""

    low: float
    high: float
    missing: int

    @classmethod
    def of(cls, values: np.ndarray, missing: np.ndarray) -> DenseRange:
        """Of raw values, some of them missing."""
        present = values[~missing] if missing.any() else values
        low, high = (float(present.min()), float(present.max())) if len(present) else (float("inf"), float("-inf"))
        return cls(low, high, int(missing.sum()))

    def join(self, other: DenseRange) -> DenseRange:
        """Of both."""
        return DenseRange(min(self.low, other.low), max(self.high, other.high), self.missing + other.missing)


@dataclass(frozen=True)
class Raw:
    """The rows of one chunk.

    Args:
        table: the rows.
        ranges: of their dense values.
        bad: the records that are not among them.
        lines: lines that the chunk had.
        samples: texts of the first rows of each categorical column.
        skipped: those of them that begin no record: blank ones, and all but the first line of a value of several lines.
    """

    table: pa.Table
    ranges: list[DenseRange]
    bad: list[BadLine] = field(default_factory=list)
    lines: int = 0
    samples: list[list[str]] = field(default_factory=list)
    skipped: int = 0


@dataclass(frozen=True)
class Converted:
    """Typed columns of some rows.

    Args:
        table: the raw table of all rows; only of use when there are no reasons.
        ranges: of the dense columns.
        reasons: why a row is not usable, by row.
        samples: of each categorical column, the texts of the first rows; empty where it holds no text.
    """

    table: pa.Table
    ranges: list[DenseRange]
    reasons: dict[int, str]
    samples: list[list[str]] = field(default_factory=list)


class Format(Protocol):
    """A kind of file."""

    dense: tuple[str, ...]
    categorical: tuple[str, ...]
    multi_valued: tuple[str, ...]
    weighted: dict[int, int]  # categorical column (its number) -> its weight column (number in the raw table)
    carried: tuple[str, ...]  # columns of the file that are kept as they are
    example: bytes  # a line that parses
    header: int  # bytes before the first line of rows
    header_lines: int  # lines before it
    delimiter: bytes | None  # between fields that quotes may enclose; None where quotes mean nothing

    def read(self, data: bytes) -> pa.Table:
        """Columns as in the file; raises `pa.ArrowInvalid` unless every line has them all."""

    def convert(self, columns: pa.Table) -> Converted:
        """Typed columns, and the reason for each row that is not usable."""

    def explain(self, line: bytes) -> str:
        """Why this line does not parse."""

    def keys(self, texts: list[str]) -> np.ndarray:
        """Keys of values of a categorical column."""


def nullable(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    """An Arrow column with nulls where `missing`."""
    return pa.array(values, mask=missing if missing.any() else None)


def dense_values(column: pa.Array, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """Float64 values of a numeric column, with `fill` where it is null, and where that was."""
    missing = np.asarray(column.is_null())
    return np.asarray(column.fill_null(fill) if missing.any() else column).astype(np.float64), missing


def check_carried(carried: Sequence[str], names: Sequence[str], where: str) -> None:
    """The columns to keep are there.

    Raises:
        ConfigError: one is not, and the names that come near.
    """
    for name in carried:
        if name not in names:
            raise ConfigError(f"output_columns names {name}, which {where} lacks; {nearest(name, names)}")


def carry(columns: pa.Table, carried: Sequence[str]) -> tuple[list[pa.ChunkedArray], list[str]]:
    """The columns to keep and their names in a raw table; a column that is read in two ways is there twice."""
    names = [f"{CARRIED}{name}" for name in carried]
    there = set(columns.column_names)
    return [columns[mark if mark in there else name] for mark, name in zip(names, carried, strict=True)], names


def sample_of(column: pa.Array) -> list[str]:
    """The texts of the first rows; empty for a column of lists."""
    if not pa.types.is_binary(column.type):
        return []
    return [shown(value or b"") for value in column.slice(0, SAMPLED).to_pylist()]


def shown(line: bytes) -> str:
    """The beginning of a line as printable text: control characters are escaped."""
    return printable(line[:SHOWN].decode("utf-8", "backslashreplace"))
