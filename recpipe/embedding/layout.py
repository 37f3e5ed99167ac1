"""A sharding type is a layout: a table cut in a grid of rectangles (row blocks x column blocks), a rank for each.

Pure arithmetic, no torch. Every type of the field is one grid:

| type | row blocks | column blocks | ranks |
|---|---|---|---|
| table_wise | 1 | 1 | one |
| row_wise | W | 1 | all |
| column_wise | 1 | C | C of them |
| table_column_wise | 1 | C | C of one node |
| table_row_wise | L | 1 | the L of one node |
| grid | L | C nodes | one node a column block, its ranks the row blocks |
| replicated | 1 | 1 | every rank holds a copy |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from recpipe.errors import PlanError
from recpipe.specs import TableSpec

SHARDING_TYPES = (
    "table_wise",
    "row_wise",
    "column_wise",
    "table_column_wise",
    "table_row_wise",
    "grid",
    "replicated",
)


@dataclass(frozen=True)
class Shard:
    """Rows [row_start, row_stop) and columns [col_start, col_stop) of a table, on `rank` (-1: a copy on every rank)."""

    row_start: int
    row_stop: int
    col_start: int
    col_stop: int
    rank: int

    @property
    def num_rows(self) -> int:
        return self.row_stop - self.row_start

    @property
    def num_cols(self) -> int:
        return self.col_stop - self.col_start


@dataclass(frozen=True)
class TableLayout:
    """Where each rectangle of one table lives.

    Args:
        spec: the table.
        sharding: one of `SHARDING_TYPES`.
        exchange: ``window`` or ``pooled``.
        shards: row-block-major; the rectangles tile the table. Empty row blocks are left out, but for the pooled exchange:
            TorchRec wants a shard for each rank, and `check_pooled` refuses empty ones.
    """

    spec: TableSpec
    sharding: str
    shards: tuple[Shard, ...]
    exchange: str = "window"

    @property
    def replicated(self) -> bool:
        return self.sharding == "replicated"

    def row_blocks(self) -> list[list[Shard]]:
        """The shards of each row block, in column order."""
        blocks: dict[int, list[Shard]] = {}
        for shard in self.shards:
            blocks.setdefault(shard.row_start, []).append(shard)
        return [blocks[start] for start in sorted(blocks)]

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({shard.rank for shard in self.shards}))

    def to_json(self) -> dict[str, Any]:
        """For `plan.json`."""
        return {
            "table": self.spec.name,
            "num_rows": self.spec.num_rows,
            "dim": self.spec.dim,
            "sharding": self.sharding,
            "exchange": self.exchange,
            "shards": [[s.row_start, s.row_stop, s.col_start, s.col_stop, s.rank] for s in self.shards],
        }


def bounds(total: int, parts: int) -> list[int]:
    """Cuts [0, total) in `parts` blocks of ceil(total / parts); the last ones may be short or empty (TorchRec's rule)."""
    block = -(-total // parts)
    return [min(i * block, total) for i in range(parts + 1)]


def make_layout(
    spec: TableSpec,
    sharding: str,
    ranks: Sequence[int],
    local_size: int,
    exchange: str = "window",
    col_align: int = 1,
) -> TableLayout:
    """The layout of one table.

    Args:
        spec: the table.
        sharding: one of `SHARDING_TYPES`.
        ranks: the ranks it may use, in order; their meaning is in the module's table.
        local_size: ranks a node, for table_row_wise and grid.
        col_align: column blocks are multiples of this (4 where FBGEMM's kernels are used).

    Raises:
        PlanError: the type is unknown, or the table has fewer columns than ranks ask for.
    """
    if sharding == "replicated":
        return TableLayout(spec, sharding, (Shard(0, spec.num_rows, 0, spec.dim, -1),), "window")
    grid = _rank_grid(spec, sharding, list(ranks), local_size)
    rows = bounds(spec.num_rows, len(grid))
    cols = _column_bounds(spec, len(grid[0]), col_align)
    shards = tuple(
        Shard(rows[i], rows[i + 1], cols[j], cols[j + 1], grid[i][j])
        for i in range(len(grid))
        for j in range(len(grid[0]))
        if rows[i] < rows[i + 1] or exchange == "pooled"
    )
    return TableLayout(spec, sharding, shards, exchange)


def _rank_grid(spec: TableSpec, sharding: str, ranks: list[int], local_size: int) -> list[list[int]]:
    """Ranks of the rectangles: a list of row blocks, each a list over column blocks."""
    if sharding == "table_wise":
        return [[ranks[0]]]
    if sharding in ("row_wise", "table_row_wise"):
        return [[rank] for rank in ranks]
    if sharding in ("column_wise", "table_column_wise"):
        return [list(ranks)]
    if sharding == "grid":
        if len(ranks) % local_size:
            raise PlanError(f"table {spec.name}: grid needs whole nodes, got {len(ranks)} ranks of {local_size} a node")
        nodes = [ranks[i : i + local_size] for i in range(0, len(ranks), local_size)]
        return [[node[i] for node in nodes] for i in range(local_size)]
    raise PlanError(f"table {spec.name}: unknown sharding type '{sharding}'; choose one of {', '.join(SHARDING_TYPES)}")


def _column_bounds(spec: TableSpec, parts: int, align: int) -> list[int]:
    units = spec.dim // align
    if units < parts or spec.dim % align:
        raise PlanError(
            f"table {spec.name}: {spec.dim} columns cannot be cut in {parts} blocks of multiples of {align}; "
            f"use at most {max(units, 1)} ranks for it (tables.pins) or a larger embedding_dim"
        )
    share, extra = divmod(units, parts)
    sizes = [(share + (i < extra)) * align for i in range(parts)]
    return [0, *accumulate(sizes)]
