"""The Criteo line: label, 13 integers, 26 hex values, separated by tabs; without the label in Kaggle's test file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyarrow import csv

from recpipe.data.prepare.hexkeys import hex_keys
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

NUM_DENSE, NUM_CATEGORICAL = 13, 26
FIELDS = 1 + NUM_DENSE + NUM_CATEGORICAL
DENSE = tuple(f"int_{i}" for i in range(NUM_DENSE))
CATEGORICAL = tuple(f"cat_{i}" for i in range(NUM_CATEGORICAL))


class CriteoFormat:
    """Reads lines of the Criteo logs.

    Args:
        labelled: lines begin with a label (40 fields), or not (39).
        dense_ids: the integers are categorical, too.
        carried: columns that are kept as they are.
    """

    def __init__(self, labelled: bool = True, dense_ids: bool = False, carried: Sequence[str] = ()) -> None:
        self.dense, self.header, self.header_lines = DENSE, 0, 0
        self.delimiter: bytes | None = None
        self.multi_valued: tuple[str, ...] = ()
        self.weighted: dict[int, int] = {}
        self.categorical = CATEGORICAL + (tuple(f"{name}_bucket" for name in DENSE) if dense_ids else ())
        self._labelled, self._dense_ids = labelled, dense_ids
        names = [LABEL] * labelled + [*DENSE, *CATEGORICAL]
        self._names, self.carried = names, tuple(carried)
        check_carried(self.carried, names, "a Criteo file")
        self.example = b"0" * labelled + b"\t" * (len(names) - 1) + b"\n"
        numbers = names[: labelled + NUM_DENSE]
        self._options = csv.ConvertOptions(
            column_types={name: pa.int64() if name in numbers else pa.binary() for name in names},
            null_values=[""],
            strings_can_be_null=False,
        )
        self._parse = csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False)

    def read(self, data: bytes) -> pa.Table:
        """Columns as in the file; raises `pa.ArrowInvalid` unless every line has them all."""
        options = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names)
        return csv.read_csv(pa.BufferReader(data), options, self._parse, self._options).combine_chunks()

    def convert(self, columns: pa.Table) -> Converted:
        """Typed columns, and the reason for each row that is not usable."""
        reasons: dict[int, str] = {}
        arrays = [self._label(columns, reasons)]
        buckets, ranges = [], []
        for name in DENSE:
            values, missing = dense_values(_flat(columns, name), 0.0)
            ranges.append(DenseRange.of(values, missing))
            arrays.append(nullable(values, missing))
            if self._dense_ids:
                buckets.append(nullable(_bucket(values), missing))
        for name in CATEGORICAL:
            text = _flat(columns, name)
            keys, missing, bad = hex_keys(text)
            for row in np.flatnonzero(bad):
                reasons.setdefault(int(row), f"{name} is not 1 to 8 hex digits")
            arrays.append(nullable(keys, missing))
        kept, marks = carry(columns, self.carried)
        table = pa.table([*arrays, *buckets, *kept], [LABEL, *self.dense, *self.categorical, *marks])
        samples = [sample_of(_flat(columns, name)) for name in CATEGORICAL] + [[] for _ in buckets]
        return Converted(table, ranges, reasons, samples)

    def _label(self, columns: pa.Table, reasons: dict[int, str]) -> pa.Array:
        """Float32 labels, null where the file has none."""
        if not self._labelled:
            return pa.nulls(columns.num_rows, pa.float32())
        values, missing = dense_values(_flat(columns, LABEL), -1.0)
        for row in np.flatnonzero(missing | ((values != 0) & (values != 1))):
            reasons[int(row)] = "label is neither 0 nor 1"
        return pa.array(values.astype(np.float32))

    def keys(self, texts: list[str]) -> np.ndarray:
        """Keys of hex values."""
        return hex_keys(pa.array([text.encode() for text in texts], pa.binary()))[0]

    def explain(self, line: bytes) -> str:
        """Why this line does not parse."""
        fields = line.split(b"\t")
        expected = len(self._names)
        if b"\r" in line:
            return "carriage return inside the line"
        if len(fields) != expected:
            hint = " (no label?)" if self._labelled and len(fields) == FIELDS - 1 else ""
            return f"{len(fields)} fields, expected {expected}{hint}"
        for name, text in zip(self._names[: expected - NUM_CATEGORICAL], fields, strict=False):
            if text and not text.strip().lstrip(b"-").isdigit():
                return f"{name} is not an integer"
        return "a value does not parse"


def _flat(columns: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = columns[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bucket(values: np.ndarray) -> np.ndarray:
    """uint32 bucket of an integer: small ones as they are, others floor(ln(x)^2) above them."""
    large = np.floor(np.log(np.maximum(values, 3.0)) ** 2) + 8
    return np.where(values > 2, large, np.maximum(values, -3.0) + 3).astype(np.uint32)


def field_count(sample: bytes) -> int:
    """The most frequent number of tab-separated fields among the lines of a sample."""
    counts = [line.count(b"\t") + 1 for line in sample.splitlines()[:1000] if line]
    return max(sorted(set(counts)), key=counts.count) if counts else 0
