"""What `tables.pins` may say: the ranks that a sharding type takes."""

from __future__ import annotations

from collections.abc import Sequence

from recpipe.errors import PlanError


def check_pins(table: str, sharding: str, ranks: Sequence[int], world: int, local_size: int) -> None:
    """Holds the pinned ranks of a table against its type.

    Args:
        sharding: one of `recpipe.embedding.layout.SHARDING_TYPES`.
        ranks: as pinned, in order.
        world, local_size: ranks, and ranks a node.

    Raises:
        PlanError: a rank does not exist or stands twice, or the type takes another number of ranks.
    """
    said = f"table {table}: tables.pins names"
    beyond = [rank for rank in ranks if not 0 <= rank < world]
    if beyond:
        raise PlanError(f"{said} rank {beyond[0]}, but there are {world} ranks")
    twice = sorted({rank for rank in ranks if list(ranks).count(rank) > 1})
    if twice:
        raise PlanError(f"{said} rank {twice[0]} twice; each rank holds one part of a table: name it once")
    if not ranks:
        raise PlanError(f"{said} no rank; leave the table out to have its ranks chosen")
    wanted = _wanted(sharding, list(ranks), world, local_size)
    if wanted:
        raise PlanError(f"{said} {len(ranks)} ranks, {list(ranks)}, and {sharding} takes {wanted}")


def _wanted(sharding: str, ranks: list[int], world: int, local_size: int) -> str:
    """What a type takes instead of these ranks; empty if they fit."""
    node = local_size if local_size > 1 else world
    nodes = {rank // node for rank in ranks}
    if sharding == "replicated":
        return "no pins, since every rank holds a copy; leave the table out of tables.pins or choose another type"
    if sharding == "table_wise" and len(ranks) != 1:
        return "exactly 1; row_wise and column_wise take several"
    if sharding in ("table_row_wise", "table_column_wise") and len(nodes) > 1:
        return f"ranks of one node (tables.local_size={local_size}: {_node(0, node)}, {_node(1, node)} ...)"
    starts = range(0, len(ranks), local_size)
    if sharding == "grid" and any(sorted(ranks[i : i + local_size]) != _whole(ranks[i], local_size) for i in starts):
        return f"whole nodes, one after the other (tables.local_size={local_size}), so a multiple of {local_size}"
    return ""


def _whole(rank: int, local_size: int) -> list[int]:
    first = rank // local_size * local_size
    return list(range(first, first + local_size))


def _node(number: int, size: int) -> list[int]:
    return list(range(number * size, (number + 1) * size))
