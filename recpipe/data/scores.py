"""Scores to a file, one a row, in row order: Parquet by name, else text."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_scores(path: Path, scores: np.ndarray) -> None:
    """Writes probabilities; the file is whole or not there.

    Args:
        path: ending in ``.parquet`` for a column ``score``; any other name: a number a line.
        scores: one a row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"score": scores}), partial)
    else:
        np.savetxt(partial, scores, fmt="%.9g")
    partial.replace(path)
