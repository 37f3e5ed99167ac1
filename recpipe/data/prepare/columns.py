"""Columns of raw tables as numpy arrays: keys and the row of each, dense values with their gaps filled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def keys_of(column: pa.ChunkedArray | pa.Array, keep: np.ndarray | None) -> np.ndarray:
    """All keys that are not missing, of the rows where `keep` is true."""
    column = one_array(column)
    if keep is not None:
        column = column.filter(pa.array(keep))
    if pa.types.is_list(column.type):
        column = column.flatten()
    return np.asarray(column.drop_null())


def dense_of(column: pa.ChunkedArray | pa.Array, fill: float) -> np.ndarray:
    """Raw float64 values with `fill` where missing."""
    column = one_array(column)
    return np.asarray(column.fill_null(fill) if column.null_count else column)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([column.combine_chunks()])
    return column
