"""Scores to a file, one a row, in row order: Parquet by name, else text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recpipe.errors import ConfigError, DataError

SCORE = "score"


def check_columns(names: list[str]) -> None:
    """Columns that can stand beside the scores. Raises ConfigError."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"output_columns names {twice[0]} twice")
    if SCORE in names:
        raise ConfigError(f"output_columns names {SCORE}, which is what the scores are called; rename the column first")


def write_scores(path: Path, scores: np.ndarray, columns: Any = None) -> None:
    """Writes probabilities; the file is whole or not there.

    Args:
        path: ending in ``.parquet`` for a column ``score``; any other name: a number a line, or CSV with a header where
            there are columns.
        scores: one a row.
        columns: a table of pyarrow with columns that go before the scores; None: scores alone.

    Raises:
        DataError: there are not as many rows as scores.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    if columns is None and path.suffix != ".parquet":
        np.savetxt(partial, scores, fmt="%.9g")
    else:
        _write_table(path, partial, scores, columns)
    partial.replace(path)


def _write_table(path: Path, partial: Path, scores: np.ndarray, columns: Any) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if columns is None:
        columns = pa.table({})
    elif columns.num_rows != len(scores):
        raise DataError(f"{columns.num_rows:,} rows were read for output_columns, but {len(scores):,} were scored")
    if path.suffix == ".parquet":
        whole = pa.table([*columns.columns, pa.array(scores)], [*columns.column_names, SCORE])
        parquet.write_table(whole, partial)
        return
    texts = pa.array([f"{score:.9g}" for score in scores]).cast(pa.float64())
    lists = [
        name for name, kind in zip(columns.column_names, columns.schema.types, strict=True) if pa.types.is_nested(kind)
    ]
    if lists:
        raise ConfigError(
            f"output_columns names {lists[0]}, which holds lists; write them to a file ending in .parquet"
        )
    csv.write_csv(pa.table([*columns.columns, texts], [*columns.column_names, SCORE]), partial)
