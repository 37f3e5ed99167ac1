"""Tables by column names: the typed columns of rows that came from delimited text or from Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from recpipe.data.prepare.header import delimiter_of
from recpipe.data.prepare.meaning import missing_numbers, positive_labels
from recpipe.data.prepare.raw import (
    LABEL,
    Converted,
    DenseRange,
    carry,
    check_carried,
    dense_values,
    nullable,
    sample_of,
)
from recpipe.data.prepare.strings import rebuild, split_keys, split_values, text_keys, text_numbers
from recpipe.errors import ConfigError, DataError, nearest
from recpipe.escapes import printable, shown

POSITIVE = "data.label_positive=[...] says which values are positive"


class TableFormat:
    """Reads rows of a table.

    Args:
        config: attributes of `TableData`.
        names: all columns of the file, in order.
        where: the file, for messages.
        role: main, valid or test.
        carried: columns that are kept as they are.
        header: bytes before the first row; 0 where the first line is one.
        header_lines: the same in lines.
        delimiter: between the fields of a text.
        keys: columns that the names of the file's folders hold, with their value.
        is_parquet: rows come typed, not as text.
        hint: a clause about the delimiter, for messages.

    Raises:
        DataError: columns are missing, or there twice.
    """

    def __init__(
        self,
        config: Any,
        names: list[str],
        where: str,
        role: str,
        carried: Sequence[str] = (),
        header: int = 0,
        header_lines: int = 0,
        delimiter: str = ",",
        keys: tuple[tuple[str, str | None], ...] = (),
        is_parquet: bool = False,
        hint: str = "",
    ) -> None:
        self.dense, self.categorical = tuple(config.dense), tuple(config.categorical)
        self.multi_valued = tuple(name for name in self.categorical if name in config.multi_valued)
        self.header, self.header_lines, self.is_parquet = header, header_lines, is_parquet
        self.carried = tuple(carried)
        self.delimiter: bytes | None = delimiter.encode()
        self._config, self._names, self._sign, self._hint = config, names, delimiter, hint
        self._weights = {name: config.weights[name] for name in self.categorical if name in config.weights}
        first = 1 + len(self.dense) + len(self.categorical)
        numbers = [self.categorical.index(name) for name in self._weights]
        self.weighted = {number: first + place for place, number in enumerate(numbers)}
        self._keys = {name: value for name, value in keys if name not in names}
        self.is_labelled = config.label in names or config.label in self._keys
        self._check(where, role, hint)
        check_carried(self.carried, [*names, *self._keys], where)
        self.example = delimiter.encode().join(b"0" if n == config.label else b"" for n in names) + b"\n"

    @property
    def used(self) -> list[str]:
        """Columns of the file that are read."""
        return [name for name in dict.fromkeys([*self._wanted, *self.carried]) if name not in self._keys]

    @property
    def read_names(self) -> list[str]:
        """Columns of the file that training reads."""
        return [name for name in self._wanted if name not in self._keys]

    @property
    def numeric(self) -> frozenset[str]:
        """Columns that hold numbers; a label does where no setting says which of its values are positive."""
        return frozenset([*self.dense, *([] if self._config.label_positive else [self._config.label])])

    @property
    def _wanted(self) -> list[str]:
        """Columns that the settings name."""
        label = [self._config.label] * self.is_labelled
        return [*label, *self.dense, *self.categorical, *self._weights.values()]

    def _check(self, where: str, role: str, hint: str) -> None:
        """All columns that the settings name are there, once each."""
        twice = sorted({name for name in self.used if self._names.count(name) > 1})
        if twice:
            raise DataError(f"{where}: column {shown(', '.join(twice))} is there twice; give the columns different names")
        wanted = [*self.dense, *self.categorical, *self._weights.values()]
        if role != "test":
            wanted = [self._config.label, *wanted]
        missing = [name for name in wanted if name not in self._names and name not in self._keys]
        if not missing:
            return self._check_keys(where)
        unused = [name for name in self._names if name not in wanted]
        clauses = [f"{name} ({nearest(name, unused or self._names)})" for name in missing]
        extra = f"; columns of the file that no setting names: {', '.join(unused)}" if unused else ""
        raise DataError(printable(f"{where} lacks {len(missing)} column(s): {', '.join(clauses)}{hint or extra}"))

    def _check_keys(self, where: str) -> None:
        """Values in the names of folders are numbers where numbers are wanted."""
        for name in self.numeric & self._keys.keys():
            if not _is_number((self._keys[name] or "").encode()):
                raise DataError(f"{where}: the name of its folder says {name}={shown(self._keys[name])}, which is no number")

    def with_keys(self, columns: pa.Table) -> pa.Table:
        """The columns of the file, and those that the names of its folders hold."""
        for name in dict.fromkeys([*self._wanted, *self.carried]):
            if name in self._keys:
                columns = columns.append_column(name, self._constant(name, columns.num_rows))
        return columns

    def _constant(self, name: str, rows: int) -> pa.Array:
        """The value that the name of a folder holds, once a row."""
        value = self._keys[name] or None
        if name in self.numeric:
            return pa.array([None if value is None else float(value)] * rows, pa.float64())
        return pa.array([None if value is None else value.encode()] * rows, pa.binary())

    def read(self, data: bytes) -> pa.Table:
        """Columns as in the file; raises `pa.ArrowInvalid` unless every line has them all."""
        types = {name: pa.float64() if name in self.numeric else pa.binary() for name in self.used}
        read = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names)
        parse = csv.ParseOptions(delimiter=self._sign, ignore_empty_lines=False)
        convert = csv.ConvertOptions(
            column_types=types,
            include_columns=self.used,
            null_values=["", *self._config.missing],
            strings_can_be_null=False,
        )
        return self.with_keys(csv.read_csv(pa.BufferReader(data), read, parse, convert).combine_chunks())

    def convert(self, columns: pa.Table) -> Converted:
        """Typed columns, and the reason for each row that is not usable."""
        reasons: dict[int, str] = {}
        arrays, names, ranges = [self._label(columns, reasons)], [LABEL], []
        for name in self.dense:
            values, missing = missing_numbers(*dense_values(_flat(columns, name), 0.0), self._config.missing)
            _note(reasons, ~np.isfinite(values), f"{name} is not finite", values)
            ranges.append(DenseRange.of(values, missing))
            arrays.append(nullable(np.nan_to_num(values), missing))
            names.append(name)
        for name in self.categorical:
            column = _flat(columns, name)
            multi = name in self.multi_valued
            none = frozenset(text.encode() for text in self._config.missing_categories)
            arrays.append(split_keys(column, self._config.separator, none) if multi else text_keys(column, none))
            names.append(name)
        for name, weights in self._weights.items():
            arrays.append(self._weight(_flat(columns, weights), arrays[names.index(name)], reasons, weights))
            names.append(weights)
        kept, marks = carry(columns, self.carried)
        arrays, names = [*arrays, *kept], [*names, *marks]
        samples = [sample_of(_flat(columns, name)) for name in self.categorical]
        return Converted(pa.table(arrays, names), ranges, reasons, samples)

    def _label(self, columns: pa.Table, reasons: dict[int, str]) -> pa.Array:
        """Float32 labels, null where the file has none."""
        if not self.is_labelled:
            return pa.nulls(columns.num_rows, pa.float32())
        name, column = self._config.label, _flat(columns, self._config.label)
        if self._config.label_positive:
            values, missing = positive_labels(column, self._config.label_positive)
        else:
            values, missing = dense_values(column, -1.0)
        wrong = (values != 0) & (values != 1)
        _note(reasons, missing, f"{name} is missing")
        _note(reasons, wrong & ~missing, f"{name} is neither 0 nor 1 ({POSITIVE})", values)
        return pa.array(values.astype(np.float32))

    def _weight(self, column: pa.Array, keys: pa.Array, reasons: dict[int, str], name: str) -> pa.Array:
        """Lists of float32 weights, one for each key."""
        lists = split_values(column, self._config.separator)
        values = text_numbers(lists.flatten())
        lengths = np.asarray(lists.value_lengths().fill_null(0))
        wanted = np.asarray(keys.value_lengths().fill_null(0))
        _note(reasons, lengths != wanted, f"{name} has not one weight for each value")
        row = np.repeat(np.arange(len(lengths)), lengths)
        broken = np.zeros(len(lengths), dtype=bool)
        broken[row[~np.isfinite(values)]] = True
        _note(reasons, broken, f"{name} has a weight that is not a finite number")
        return rebuild(lists, pa.array(values))

    def keys(self, texts: list[str]) -> np.ndarray:
        """Keys of texts."""
        return np.asarray(text_keys(pa.array([text.encode() for text in texts], pa.binary())).fill_null(0))

    def explain(self, line: bytes) -> str:
        """Why this line does not parse."""
        if b"\r" in line:
            return "carriage return inside the line"
        fields = line.split(self._sign.encode())
        if len(fields) != len(self._names) and b'"' not in line:
            return f"{len(fields)} fields, expected {len(self._names)}{self._hint if len(fields) == 1 else ''}"
        for name, text in zip(self._names, fields, strict=False):
            value = text.decode(errors="replace")
            if name in self.numeric and value not in self._config.missing and not _is_number(text):
                advice = f" ({POSITIVE})" if name == self._config.label else ""
                return f"{name} is not a number{advice}: '{shown(value)}'"
        return "a value or its quotes do not parse"


def check_table(config: Any) -> None:
    """Settings of a table that contradict each other.

    Raises:
        ConfigError: which, and what to change.
    """
    delimiter_of(config.delimiter, Path("rows.csv"))
    if not config.dense and not config.categorical:
        raise ConfigError("data=table needs columns: data.categorical=[...] and data.dense=[...]")
    if not config.header and not config.columns:
        raise ConfigError("data.header=false needs the names of all columns, in order: data.columns=[...]")
    if config.header and config.columns:
        raise ConfigError("data.columns has no effect with data.header=true; leave one of them out")
    for setting in ("multi_valued", "weights"):
        for name in getattr(config, setting):
            if name not in config.categorical:
                known = nearest(name, config.categorical)
                raise ConfigError(f"data.{setting} names {name}, which is not in data.categorical; {known}")
    for name in config.weights:
        if name not in config.multi_valued:
            raise ConfigError(f"data.weights names {name}, which is not in data.multi_valued")
    names = [config.label, *config.dense, *config.categorical]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"columns in two roles: {', '.join(twice)}")


def _flat(columns: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = columns[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _note(reasons: dict[int, str], bad: np.ndarray, reason: str, values: np.ndarray | None = None) -> None:
    """Give these rows this reason, with the value that is to blame, unless they have one."""
    for row in np.flatnonzero(bad):
        reasons.setdefault(int(row), reason if values is None else f"{reason}: '{values[row]:g}'")


def _is_number(text: bytes) -> bool:
    """Empty, or a number."""
    try:
        return not text or float(text) is not None
    except ValueError:
        return False
