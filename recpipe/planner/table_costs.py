"""What one table costs in each way of keeping it: bytes on links, bytes of memory traffic and bytes held, shard by shard.

A `Kind` is a way of keeping a table that leaves open which ranks hold it: sharding type, exchange, row and column blocks.
All consumers draw rows alike, so what an owner sends is the same for each of them; `loads.py` places kinds on ranks.

The figures follow the code that runs: `recpipe.embedding.window` sends unique rows and sums gradients at both ends,
`recpipe.embedding.pooled` sends every lookup's id and one partial sum a bag and row block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recpipe.embedding.layout import bounds
from recpipe.planner.statistics import Demand

STATE_WIDTH = {"sgd": 0.0, "adagrad": 1.0, "rowwise_adagrad": 0.0, "adam": 2.0}
"""Optimizer state over the columns of a row."""
STATE_ROW = {"rowwise_adagrad": 1}
"""Optimizer values a row and shard, beside the columns."""
_POOLED_ID_BYTES, _LENGTH_BYTES = 12, 4
_LINE = 64
"""Bytes of a cache line: a narrower piece of a row costs as much."""
_MANY_RANKS = 64
"""Above this columns are cut in powers of 4, not of 2."""
_COLUMN_CUTS = ("column_wise", "table_column_wise", "grid")


@dataclass(frozen=True)
class Shape:
    """What surrounds the tables: how many consumers there are and what they ask for.

    Args:
        world: ranks.
        local_size: ranks a node, for the sharding types by node.
        consumers: ranks that read data.
        rows: rows of data of one consumer in a step.
        optimizer: rule of the rows.
        row_bytes: bytes of one value of a row, kept and sent.
    """

    world: int
    local_size: int
    consumers: int
    rows: float
    optimizer: str
    row_bytes: int = 4


@dataclass(frozen=True)
class Kind:
    """One way of keeping one table. Arrays have one entry a shard, row-block-major.

    Args:
        sharding, exchange: as in `recpipe.embedding.layout`.
        row_blocks, col_blocks: the grid.
        own: bytes of rows (or partial sums) that an owner sends to each consumer in a step; gradients are as many.
        ids: bytes of row numbers that it gets from each consumer.
        gather, update: memory traffic of lookup and of the update, bytes.
        held, state: weights and optimizer state, bytes.
        moving: rows and gradients that are at the owner during a step, bytes.
        dedup, pool, unpool: what a consumer does: lookups to make unique; bytes of memory traffic before and after the tower.
        reduced: bytes of the all-reduce of a replicated table, else 0.
        consumer_held: bytes of received rows, their gradients and indices at a consumer.
    """

    sharding: str
    exchange: str
    row_blocks: int
    col_blocks: int
    own: np.ndarray
    ids: np.ndarray
    gather: np.ndarray
    update: np.ndarray
    held: np.ndarray
    state: np.ndarray
    moving: np.ndarray
    dedup: float
    pool: float
    unpool: float
    reduced: float
    consumer_held: float

    @cached_property
    def packed(self) -> np.ndarray:
        """Rows by window, rows pooled, ids, gather, update, memory: 6 x shards."""
        nothing = np.zeros(self.num_shards)
        pooled = self.exchange == "pooled"
        rows = (nothing, self.own) if pooled else (self.own, nothing)
        return np.stack([*rows, self.ids, self.gather, self.update, self.held + self.state + self.moving])

    @property
    def num_shards(self) -> int:
        return self.row_blocks * self.col_blocks

    @property
    def replicated(self) -> bool:
        return self.sharding == "replicated"

    @property
    def label(self) -> str:
        return f"{self.sharding}/{self.exchange}"


@dataclass(frozen=True)
class Allowed:
    """What may be used for a table.

    Args:
        sharding, exchanges: types and exchanges; of a table that is pinned, one.
        ranks: the ranks it is pinned to, in order; empty for free choice.
        align: column blocks of the pooled exchange are multiples of this.
    """

    sharding: tuple[str, ...]
    exchanges: tuple[str, ...] = ("window", "pooled")
    ranks: tuple[int, ...] = ()
    align: int = 4


def kinds_of(demand: Demand, shape: Shape, allowed: Allowed) -> list[Kind]:
    """Every way of keeping a table that runs, in a fixed order."""
    found = []
    for sharding, rows, cols in _grids(demand, shape, allowed):
        for exchange in ("window",) if sharding == "replicated" else allowed.exchanges:
            if exchange == "pooled" and not _pooled_runs(demand, shape, sharding, rows, cols):
                continue
            found.append(make_kind(demand, shape, sharding, exchange, rows, cols))
    return found


def _pooled_runs(demand: Demand, shape: Shape, sharding: str, rows: int, cols: int) -> bool:
    """What `recpipe.embedding.pooled.check_pooled` takes."""
    spec = demand.spec
    cut = sharding in _COLUMN_CUTS and rows * cols > 1
    empty = bounds(spec.num_rows, rows)[-2] >= spec.num_rows
    return not (
        spec.dim % 4
        or cols > spec.dim // 4
        or empty
        or shape.row_bytes != 4
        or shape.optimizer == "adam"
        or (cut and shape.optimizer == "rowwise_adagrad")
    )


def _grids(demand: Demand, shape: Shape, allowed: Allowed) -> Iterator[tuple[str, int, int]]:
    """(sharding type, row blocks, column blocks) of each type that a machine of this shape has."""
    world, local, units = shape.world, shape.local_size, max(demand.spec.dim // 4, 1)
    nodes, step = world // local, 1 if world <= _MANY_RANKS else 2
    grids: dict[str, list[tuple[int, int]]] = {
        "table_wise": [(1, 1)],
        "row_wise": [(world, 1)] if world > 1 else [],
        "column_wise": [(1, c) for c in _powers(min(world, units), step)],
        "table_row_wise": [(local, 1)] if local > 1 and nodes > 1 else [],
        "table_column_wise": [(1, c) for c in _powers(min(local, units), step)] if nodes > 1 else [],
        "grid": [(local, c) for c in _powers(min(nodes, units), step)] if local > 1 else [],
        "replicated": [(1, 1)],
    }
    for sharding in allowed.sharding:
        if allowed.ranks and sharding != "replicated":
            yield _pinned_grid(sharding, len(allowed.ranks), local)
        else:
            yield from ((sharding, rows, cols) for rows, cols in grids[sharding])


def _pinned_grid(sharding: str, ranks: int, local: int) -> tuple[str, int, int]:
    if sharding == "grid":
        return sharding, local, ranks // local
    by_rows = sharding in ("row_wise", "table_row_wise")
    return (sharding, ranks, 1) if by_rows else (sharding, 1, 1 if sharding == "table_wise" else ranks)


def _powers(most: int, step: int = 1) -> list[int]:
    """2, 4, 8, ... up to `most`; with a step of 2 the powers of 4."""
    return [2**k for k in range(step, most.bit_length(), step) if 2**k <= most]


def column_widths(dim: int, parts: int, align: int) -> list[int]:
    """Columns of each block, as `make_layout` cuts them."""
    share, extra = divmod(dim // align, parts)
    return [(share + (i < extra)) * align for i in range(parts)]


def make_kind(demand: Demand, shape: Shape, sharding: str, exchange: str, rows: int, cols: int) -> Kind:
    """The figures of one kind. Raises nothing: what cannot be cut is left out by :func:`kinds_of`."""
    if sharding == "replicated":
        return _replicated(demand, shape)
    spec, e = demand.spec, shape.row_bytes
    edges = bounds(spec.num_rows, rows)
    width = np.array(column_widths(spec.dim, cols, 4 if exchange == "pooled" else 1), dtype=np.float64)
    block_rows = np.diff(np.array(edges, dtype=np.float64))
    touched = demand.unique_in(shape.rows * shape.consumers, edges)
    state = STATE_WIDTH[shape.optimizer]

    def shards(per_row: np.ndarray, wide: bool = True) -> np.ndarray:
        return np.outer(per_row, width if wide else np.ones(cols)).ravel()

    held = e * shards(block_rows)
    kept = held * state + e * shards(block_rows, False) * STATE_ROW.get(shape.optimizer, 0)
    if exchange == "pooled":
        return _pooled(demand, shape, sharding, (rows, cols), edges, shards, touched, (held, kept))
    unique = demand.unique_in(shape.rows, edges)
    lookups, total = shape.rows * demand.mean_ids, demand.unique(shape.rows)
    number = 4 if spec.num_rows < 2**31 else 8
    line = np.maximum(width * e, _LINE)
    summed = shape.consumers * np.outer(unique, line).ravel()
    landed = 2 * total * float(line.sum()) if cols > 1 else 0.0
    return Kind(
        sharding,
        exchange,
        rows,
        cols,
        own=shards(unique) * e,
        ids=shards(unique, False) * number,
        gather=2 * summed,
        update=3 * summed + np.outer(touched, line).ravel() * (3 + 2 * state),
        held=held,
        state=kept,
        moving=2 * shape.consumers * shards(unique) * e,
        dedup=lookups,
        pool=(lookups + shape.rows) * spec.dim * e + landed,
        unpool=(lookups + 3 * total) * spec.dim * e + landed,
        reduced=0.0,
        consumer_held=consumer_bytes(lookups, total, spec.dim, e),
    )


def consumer_bytes(lookups: float, unique: float, dim: int, element: int) -> float:
    """Received rows (of this step and of the next), gradients, keys, inverse and piece orders of the window exchange."""
    return 3 * unique * dim * element + 16 * lookups + 32 * unique


def _pooled(
    demand: Demand,
    shape: Shape,
    sharding: str,
    grid: tuple[int, int],
    edges: Sequence[int],
    shards: Callable[..., np.ndarray],
    touched: np.ndarray,
    held: tuple[np.ndarray, np.ndarray],
) -> Kind:
    """Every lookup's id goes to its owner; a partial sum a bag and row block comes back."""
    spec, e = demand.spec, shape.row_bytes
    lookups = demand.lookups_in(shape.rows, edges)
    bags = np.full(len(edges) - 1, shape.rows)
    state = STATE_WIDTH[shape.optimizer]
    # Cut inside a node, partial sums are added there first and cross nodes once; both phases take about as long.
    phases = 2 / grid[0] if sharding in ("table_row_wise", "grid") and grid[0] > 1 else 1.0
    own = shards(bags) * e * phases
    line = np.maximum(np.array(column_widths(spec.dim, grid[1], 4)) * float(e), _LINE)
    read = np.outer(lookups, line).ravel()
    return Kind(
        sharding,
        "pooled",
        grid[0],
        grid[1],
        own=own,
        ids=shards(lookups, False) * _POOLED_ID_BYTES + shards(bags, False) * _LENGTH_BYTES,
        gather=shape.consumers * (read + e * shards(bags)),
        update=shape.consumers * 2 * read + np.outer(touched, line).ravel() * (2 + 2 * state),
        held=held[0],
        state=held[1],
        moving=2 * shape.consumers * own,
        dedup=0.0,
        pool=2 * shape.rows * spec.dim * e,
        unpool=2 * shape.rows * spec.dim * e,
        reduced=0.0,
        consumer_held=2 * shape.rows * spec.dim * e + 24 * shape.rows * demand.mean_ids,
    )


def _replicated(demand: Demand, shape: Shape) -> Kind:
    """A copy a rank: rows are at hand, the gradient is one dense all-reduce with a count a row."""
    spec, e = demand.spec, shape.row_bytes
    lookups, unique = shape.rows * demand.mean_ids, demand.unique(shape.rows)
    touched = demand.unique(shape.rows * shape.consumers)
    state = STATE_WIDTH[shape.optimizer]
    dense = spec.num_rows * (spec.dim + 1) * e if shape.world > 1 else 0.0
    return Kind(
        "replicated",
        "window",
        1,
        1,
        own=np.zeros(1),
        ids=np.zeros(1),
        gather=np.array([2 * unique * spec.dim * e]),
        update=np.array([3 * dense + touched * spec.dim * e * (3 + 2 * state)]),
        held=np.array([e * float(spec.num_elements)]),
        state=np.array([e * spec.num_rows * (spec.dim * state + STATE_ROW.get(shape.optimizer, 0))]),
        moving=np.array([dense]),
        dedup=lookups,
        pool=(lookups + shape.rows) * spec.dim * e,
        unpool=(lookups + 3 * unique) * spec.dim * e,
        reduced=dense,
        consumer_held=consumer_bytes(lookups, unique, spec.dim, e),
    )
