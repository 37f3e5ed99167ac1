"""Rows in memory as a file that the readers of files take, so that both are read in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from recpipe.data.prepare.criteo import CATEGORICAL, DENSE, FIELDS
from recpipe.data.prepare.raw import LABEL
from recpipe.errors import DataError


def write_frame(frame: Any, folder: Path, kind: str) -> Path:
    """A file of the rows of a frame, without its index.

    Args:
        frame: of pandas, or a table of pyarrow.
        folder: where the file goes.
        kind: criteo or table: what the model was trained on.

    Raises:
        DataError: it is neither, or has other columns than a Criteo line.
    """
    try:
        table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(pd.DataFrame(frame), preserve_index=False)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise DataError(f"rows of type {type(frame).__name__} are no table: {error}; give a frame of pandas") from None
    if kind == "criteo":
        return _criteo(table.to_pandas(), folder / "rows.txt")
    parquet.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def _criteo(frame: pd.DataFrame, path: Path) -> Path:
    """Criteo lines of columns named as in a prepared directory, or of 39 or 40 columns in order."""
    names = [name for name in (LABEL, *DENSE, *CATEGORICAL) if name in frame.columns]
    if len(names) >= FIELDS - 1:
        frame = frame[names]
    if frame.shape[1] not in (FIELDS, FIELDS - 1):
        raise DataError(f"a frame of {frame.shape[1]} columns is no Criteo log: it needs {FIELDS - 1}, or {FIELDS} with labels")
    # A column of integers with gaps is one of floats in a frame.
    whole = {name: frame[name].astype("Int64") for name in frame.columns if frame[name].dtype.kind == "f"}
    frame.assign(**whole).to_csv(path, sep="\t", header=False, index=False, na_rep="")
    return path
