"""How table rows start, in pieces: any rectangle of a table can be made alone, and every sharding has the same start.

Rows come in chunks of ``CHUNK_ROWS``; each chunk has its own generator, seeded by (seed, table name, chunk).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from recpipe.model.seeding import generator_for
from recpipe.specs import TableSpec

CHUNK_ROWS = 4096


@dataclass(frozen=True)
class RowInit:
    """A rule for the first values of rows.

    Args:
        kind: ``uniform`` within 1 / sqrt(number of rows), or ``normal``.
        std: standard deviation of ``normal``.
        num_columns: columns that get a random start; the others start at zero. None: all.
    """

    kind: str = "uniform"
    std: float = 1e-4
    num_columns: int | None = None


def init_rows(
    table: TableSpec,
    row_start: int,
    row_stop: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    rule: RowInit | None = None,
) -> torch.Tensor:
    """Rows ``[row_start, row_stop)`` of a table at step 0, ``[rows, dim]`` on CPU.

    Memory beyond the result is one chunk. Values are drawn as float32, so that every dtype has the same start.
    """
    assert 0 <= row_start <= row_stop <= table.num_rows, f"{table.name}: rows {row_start} to {row_stop}"
    rule = rule or RowInit()
    rows_ND = torch.empty(row_stop - row_start, table.dim, dtype=dtype)
    for chunk in range(row_start // CHUNK_ROWS, -(-row_stop // CHUNK_ROWS)):
        first = chunk * CHUNK_ROWS
        start, stop = max(first, row_start), min(first + CHUNK_ROWS, row_stop)
        values_CD = _chunk(table, chunk, seed, rule)
        rows_ND[start - row_start : stop - row_start] = values_CD[start - first : stop - first]
    for row in table.zero_rows:
        if row_start <= row < row_stop:
            rows_ND[row - row_start] = 0.0
    return rows_ND


def _chunk(table: TableSpec, chunk: int, seed: int, rule: RowInit) -> torch.Tensor:
    """A whole chunk, also where the table ends inside it: a part of one would draw other numbers."""
    generator = generator_for("rows", seed, table.name, chunk)
    values_CD = torch.empty(CHUNK_ROWS, table.dim)
    if rule.kind == "normal":
        values_CD.normal_(0.0, rule.std, generator=generator)
    else:
        bound = 1.0 / math.sqrt(table.num_rows)
        values_CD.uniform_(-bound, bound, generator=generator)
    if rule.num_columns is not None:
        values_CD[:, rule.num_columns :] = 0.0
    return values_CD
