"""Chooses a layout for every table by a simple rule: what the user pinned, else by size. The planner replaces the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recpipe.embedding.layout import SHARDING_TYPES, TableLayout, make_layout
from recpipe.embedding.pins import check_pins
from recpipe.errors import PlanError, nearest
from recpipe.specs import TableSpec

EXCHANGES = ("window", "pooled")


@dataclass(frozen=True)
class PlacementOptions:
    """What the user asks of the placement.

    Args:
        sharding: a sharding type for all tables, or ``auto``.
        exchange: ``window`` or ``pooled``, for every table that is not replicated.
        replicate_below: with ``auto``, tables of fewer rows are replicated.
        local_size: ranks a node (table_row_wise, table_column_wise, grid).
        per_table: sharding type by table name.
        exchange_per_table: exchange by table name.
        pins: ranks by table name.
    """

    sharding: str = "auto"
    exchange: str = "window"
    replicate_below: int = 0
    local_size: int = 1
    per_table: Mapping[str, str] = field(default_factory=dict)
    exchange_per_table: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, Sequence[int]] = field(default_factory=dict)


def placement_options(cfg: Any) -> PlacementOptions:
    """What a run's configuration (`tables`, `exchange.kind`) says of where its tables lie."""
    chosen = cfg.tables
    return PlacementOptions(
        sharding=chosen.sharding,
        exchange=cfg.exchange.kind,
        replicate_below=chosen.replicate_below,
        local_size=chosen.local_size,
        per_table=dict(chosen.per_table),
        exchange_per_table=dict(chosen.exchange_per_table),
        pins={name: list(ranks) for name, ranks in chosen.pins.items()},
    )


def place_tables(specs: Sequence[TableSpec], world: int, options: PlacementOptions) -> tuple[TableLayout, ...]:
    """A layout a table, in order; the same on every rank.

    ``auto`` shards a table row-wise when it alone holds more than its share of all elements, and otherwise gives it
    whole to the rank that holds least; a table that is pinned lies whole on its rank, or row-wise on several.

    Raises:
        PlanError: a name is no table, a type is unknown, or pinned ranks do not fit (`recpipe.embedding.pins`).
    """
    _check_names(specs, options)
    if world % options.local_size:
        raise PlanError(f"tables.local_size={options.local_size} does not divide the {world} ranks")
    load = [0.0] * world
    layouts: dict[str, TableLayout] = {}
    for spec in sorted(specs, key=lambda s: (-s.num_elements, s.name)):
        layouts[spec.name] = _place(spec, world, options, load, sum(s.num_elements for s in specs) / world)
    return tuple(layouts[spec.name] for spec in specs)


def _place(spec: TableSpec, world: int, options: PlacementOptions, load: list[float], fair: float) -> TableLayout:
    sharding = options.per_table.get(spec.name, options.sharding)
    exchange = options.exchange_per_table.get(spec.name, options.exchange)
    pins = options.pins.get(spec.name)
    if sharding == "auto":
        sharding = _auto(spec, world, options, fair) if pins is None else "table_wise" if len(pins) == 1 else "row_wise"
    if pins is not None:
        check_pins(spec.name, sharding, pins, world, options.local_size)
    if sharding == "replicated" and options.exchange_per_table.get(spec.name) == "pooled":
        raise PlanError(
            f"tables.exchange_per_table.{spec.name}=pooled: the table is replicated and travels by no exchange; leave it out"
        )
    ranks = _pick_ranks(spec, sharding, options.local_size, load) if pins is None else list(pins)
    align = 4 if exchange == "pooled" else 1
    layout = make_layout(spec, sharding, ranks, options.local_size, exchange, align)
    for shard in layout.shards:
        for rank in range(world) if shard.rank < 0 else (shard.rank,):
            load[rank] += shard.num_rows * shard.num_cols
    return layout


def _auto(spec: TableSpec, world: int, options: PlacementOptions, fair: float) -> str:
    if spec.num_rows < options.replicate_below:
        return "replicated"
    return "row_wise" if spec.num_elements > fair and world > 1 else "table_wise"


def _pick_ranks(spec: TableSpec, sharding: str, local_size: int, load: list[float]) -> list[int]:
    """Ranks for a type: the least loaded rank or node where one is enough, else all."""
    world = len(load)
    if sharding == "table_wise":
        return [min(range(world), key=lambda rank: (load[rank], rank))]
    if sharding in ("table_row_wise", "table_column_wise"):
        size = local_size if local_size > 1 else world
        node = min(range(world // size), key=lambda n: (sum(load[n * size : (n + 1) * size]), n))
        ranks = list(range(node * size, (node + 1) * size))
    else:
        ranks = list(range(world))
    if sharding in ("column_wise", "table_column_wise"):
        # A table narrower than the world takes as many ranks as it has columns of four, the least loaded first.
        units = max(spec.dim // 4, 1)
        ranks = sorted(sorted(ranks, key=lambda rank: (load[rank], rank))[:units])
    return ranks


def _check_names(specs: Sequence[TableSpec], options: PlacementOptions) -> None:
    names = [spec.name for spec in specs]
    for setting, mapping in (
        ("per_table", options.per_table),
        ("exchange_per_table", options.exchange_per_table),
        ("pins", options.pins),
    ):
        for name in mapping:
            if name not in names:
                raise PlanError(f"tables.{setting} names '{name}', which is no table; {nearest(name, names)}")
    for name, sharding in options.per_table.items():
        if sharding not in SHARDING_TYPES:
            raise PlanError(f"tables.per_table.{name}={sharding}: no such type; {nearest(sharding, SHARDING_TYPES)}")
    for name, exchange in options.exchange_per_table.items():
        if exchange not in EXCHANGES:
            known = nearest(exchange, EXCHANGES)
            raise PlanError(f"tables.exchange_per_table.{name}={exchange}: no such exchange; {known}")
    if options.sharding not in (*SHARDING_TYPES, "auto"):
        raise PlanError(f"tables.sharding={options.sharding}: no such type; {nearest(options.sharding, SHARDING_TYPES)}")
