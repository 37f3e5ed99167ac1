"""Tables as checkpoint entries: canonical names, whole-table shapes, this rank's rectangles.

A name says table and tensor only (``tables.t_cat_0.weight``, ``tables.t_cat_0.sum``), never the plan, so that any plan
loads what any other saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recpipe.embedding.store import RowStore


@dataclass(frozen=True)
class Piece:
    """A rectangle of an entry that this rank holds.

    Args:
        offsets: where it begins in the whole tensor.
        tensor: the values: a view of the store.
        saved: this rank writes it. Copies (replicas; a row's state on the owners of its columns) are written once.
    """

    offsets: tuple[int, ...]
    tensor: torch.Tensor
    saved: bool


@dataclass(frozen=True)
class Entry:
    """One tensor of a table: the whole shape and the rectangles that this rank holds (maybe none)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


def table_entries(store: RowStore) -> dict[str, Entry]:
    """Entries of all tables of a store; the same names and shapes on every rank."""
    entries: dict[str, Entry] = {}
    dtype = store.weights[0].dtype
    for table, layout in enumerate(store.rowmap.layouts):
        spec = layout.spec
        key = f"tables.{spec.name}"
        entries[f"{key}.weight"] = Entry((spec.num_rows, spec.dim), dtype, _pieces(store, table, None))
        for name, columns in store.optimizer.state_widths(spec.dim).items():
            shape = (spec.num_rows, spec.dim) if columns else (spec.num_rows,)
            entries[f"{key}.{name}"] = Entry(shape, dtype, _pieces(store, table, name))
    return entries


def _pieces(store: RowStore, table: int, state: str | None) -> tuple[Piece, ...]:
    pieces = []
    for local in store.rowmap.local_shards:
        if local.table != table:
            continue
        tensor = store.weight(local) if state is None else store.state(local, state)
        offsets = (local.shard.row_start, local.shard.col_start)[: tensor.dim()]
        first_copy = local.shard.rank >= 0 or store.rowmap.rank == 0
        first_column = tensor.dim() == 2 or local.shard.col_start == 0
        pieces.append(Piece(offsets, tensor, first_copy and first_column))
    return tuple(pieces)
