"""A plan as a record and as a file: written, edited by hand, read back, compared, and applied to a training configuration.

A file says what is chosen, not every rectangle: ``sharding``, ``exchange`` and ``ranks`` of a table make its layout, the
same way as `tables.per_table`, `tables.exchange_per_table` and `tables.pins` of a run would.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recpipe.embedding.layout import SHARDING_TYPES, TableLayout, make_layout
from recpipe.errors import PlanError, nearest
from recpipe.escapes import shown
from recpipe.records import record
from recpipe.specs import TableSpec
from recpipe.untrusted import Source

FORMAT = "recpipe-plan/1"
_MOST = 2**48
_BY_NODE = ("table_row_wise", "table_column_wise", "grid")


@dataclass(frozen=True)
class MadeFor:
    """What a plan holds for; any difference makes it another problem.

    Args:
        world, local_size: ranks, and ranks a node.
        model: name; `blocks`: its blocks in order.
        data: name of the data set.
        global_batch: rows a step.
        table_optimizer, dense_optimizer: rules, which decide the bytes of state.
    """

    world: int
    local_size: int
    model: str
    blocks: tuple[str, ...]
    data: str
    global_batch: int
    table_optimizer: str
    dense_optimizer: str


@dataclass(frozen=True)
class PlannedTable:
    """One table.

    Args:
        table, num_rows, dim: its spec.
        sharding, exchange: as in `recpipe.embedding.layout`.
        ranks: in the order `make_layout` takes them; empty where every rank has a copy.
        kernel: what runs the lookup: ``unique`` (gather of unique rows), ``fused`` (FBGEMM) or ``local`` (a copy).
    """

    table: str
    num_rows: int
    dim: int
    sharding: str
    exchange: str
    ranks: tuple[int, ...]
    kernel: str = ""


@dataclass(frozen=True)
class Plan:
    """Tables, stages, schedule.

    Args:
        made_for: the problem.
        stages, replicas: the mesh.
        cuts: names of the blocks that stages after the first begin with.
        batch_size: rows of a replica a step.
        schedule, microbatches, chunks, embedding: as in the group `schedule`.
        tables: in feature order.
        predicted: numbers of the prediction, for the report; they are not read back.
    """

    made_for: MadeFor
    stages: int
    replicas: int
    cuts: tuple[str, ...]
    batch_size: int
    schedule: str
    microbatches: int
    chunks: int
    embedding: str
    tables: tuple[PlannedTable, ...]
    predicted: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"format": FORMAT, **asdict(self)}

    def layouts(self) -> tuple[TableLayout, ...]:
        """Where every rectangle lies. Raises PlanError for a table that cannot be cut so."""
        return tuple(layout_of(table, self.made_for.local_size) for table in self.tables)


def kernel_of(sharding: str, exchange: str) -> str:
    """What runs the lookup of a table."""
    return "local" if sharding == "replicated" else "fused" if exchange == "pooled" else "unique"


def layout_of(table: PlannedTable, local_size: int) -> TableLayout:
    """The layout of one planned table."""
    spec = TableSpec(table.table, table.table.removeprefix("t_"), table.num_rows, table.dim)
    align = 4 if table.exchange == "pooled" else 1
    return make_layout(spec, table.sharding, table.ranks, local_size, table.exchange, align)


def save_plan(plan: Plan, path: Path) -> None:
    """Writes the file; keys are in a fixed order, so that two plans can be compared line by line."""
    path.write_text(json.dumps(plan.to_json(), indent=1) + "\n")


def load_plan(path: Path) -> Plan:
    """Reads a file that may have been edited.

    Raises:
        PlanError: it is no plan, a key is unknown or missing, a type or a rank does not exist.
    """
    content = Source(path, PlanError, large=True, non_finite=True).json()
    known = content.fields()
    found = known.pop("format", None)
    if found is None or found.raw != FORMAT:
        shape = None if found is None else shown(found.raw)
        raise PlanError(f"plan {path} has format {shape}, this version reads {FORMAT}; make it again with recpipe plan")
    _check_keys(Plan, content.fields(), path, "plan")
    _check_keys(MadeFor, content["made_for"].fields(), path, "made_for")
    for index, table in enumerate(content["tables"].items()):
        _check_keys(PlannedTable, table.fields(), path, f"tables[{index}]")
    del content.raw["format"]
    plan = record(content, Plan, high=_MOST)
    check_plan(plan, str(path))
    return plan


def _check_keys(kind: type, values: Mapping[str, Any], path: Path, where: str) -> None:
    """Every key known, none missing."""
    known = {one.name: one for one in fields(kind)}
    for key in values:
        if key not in known and not (kind is Plan and key == "format"):
            raise PlanError(f"plan {path}: {where}.{shown(key)} is no key of a plan; {nearest(shown(key), known)}")
    missing = [name for name in known if name not in values and name not in ("kernel", "predicted")]
    if missing:
        raise PlanError(f"plan {path}: {where} lacks {', '.join(missing)}")


def check_plan(plan: Plan, where: str = "plan") -> None:
    """What can be said of a plan by itself. Raises PlanError."""
    made_for = plan.made_for
    for name, value in (("world", made_for.world), ("local_size", made_for.local_size), ("batch_size", plan.batch_size)):
        if value < 1:
            raise PlanError(f"{where}: {name}={value} must be at least 1")
    if plan.stages * plan.replicas != made_for.world:
        raise PlanError(f"{where}: {plan.stages} stages x {plan.replicas} replicas are not {made_for.world} ranks")
    if plan.batch_size * plan.replicas != made_for.global_batch:
        raise PlanError(
            f"{where}: batch_size={plan.batch_size} x {plan.replicas} replicas is not the global batch {made_for.global_batch}"
        )
    for name in plan.cuts:
        if name not in made_for.blocks[1:]:
            raise PlanError(f"{where}: cuts names block '{name}'; {nearest(name, made_for.blocks[1:])}")
    for table in plan.tables:
        if table.sharding not in SHARDING_TYPES:
            raise PlanError(
                f"{where}: table {table.table}: no type '{table.sharding}'; {nearest(table.sharding, SHARDING_TYPES)}"
            )
        if table.exchange not in ("window", "pooled"):
            raise PlanError(f"{where}: table {table.table}: exchange '{table.exchange}' is neither window nor pooled")
        wrong = [rank for rank in table.ranks if not 0 <= rank < made_for.world]
        if wrong or (not table.ranks and table.sharding != "replicated"):
            raise PlanError(f"{where}: table {table.table}: ranks {list(table.ranks)} of {made_for.world}")
    plan.layouts()


def differences(plan: Plan, made_for: MadeFor, tables: Sequence[TableSpec]) -> list[str]:
    """What the plan was made for and this run is not, one line each."""
    lines = []
    for one in fields(MadeFor):
        old, new = getattr(plan.made_for, one.name), getattr(made_for, one.name)
        if tuple_of(old) != tuple_of(new):
            lines.append(f"{one.name}: the plan has {_short(old)}, this run {_short(new)}")
    planned = {table.table: table for table in plan.tables}
    here = {spec.name: spec for spec in tables}
    for name in sorted(planned.keys() | here.keys()):
        lines += _table_difference(name, planned.get(name), here.get(name))
    if not lines and [table.table for table in plan.tables] != [spec.name for spec in tables]:
        lines.append("tables: the same, in another order")
    return lines


def _table_difference(name: str, old: PlannedTable | None, new: TableSpec | None) -> list[str]:
    if old is None or new is None:
        return [f"table {name}: only in {'this run' if old is None else 'the plan'}"]
    same = (old.num_rows, old.dim) == (new.num_rows, new.dim)
    return (
        []
        if same
        else [f"table {name}: the plan has {old.num_rows:,} x {old.dim}, this run {new.num_rows:,} x {new.dim}"]
    )


def tuple_of(value: Any) -> Any:
    """Lists and tuples alike."""
    return tuple(value) if isinstance(value, list) else value


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def require_same(plan: Plan, made_for: MadeFor, tables: Sequence[TableSpec], where: str = "the plan") -> None:
    """Raises PlanError with every difference where the plan was made for something else."""
    lines = differences(plan, made_for, tables)
    if lines:
        shown = "\n  ".join(lines[:12]) + (f"\n  and {len(lines) - 12} more" if len(lines) > 12 else "")
        raise PlanError(f"{where} was made for another run:\n  {shown}\nmake one for this run with recpipe plan")


def compare(old: Plan, new: Plan) -> list[str]:
    """What two plans do differently, one line each."""
    lines = []
    for name in ("stages", "replicas", "cuts", "batch_size", "schedule", "microbatches", "chunks", "embedding"):
        before, after = getattr(old, name), getattr(new, name)
        if tuple_of(before) != tuple_of(after):
            lines.append(f"{name}: {_short(before)} -> {_short(after)}")
    before_tables = {table.table: table for table in old.tables}
    for table in new.tables:
        before = before_tables.get(table.table)
        if before is None:
            lines.append(f"table {table.table}: new")
        elif (before.sharding, before.exchange, before.ranks) != (table.sharding, table.exchange, table.ranks):
            lines.append(f"table {table.table}: {_place(before)} -> {_place(table)}")
    lines += [f"table {name}: gone" for name in before_tables.keys() - {table.table for table in new.tables}]
    return lines


def _place(table: PlannedTable) -> str:
    ranks = ",".join(map(str, table.ranks[:8])) + (",..." if len(table.ranks) > 8 else "")
    return f"{table.sharding} {table.exchange} [{ranks}]" if table.ranks else table.sharding


def overrides(plan: Plan) -> dict[str, Any]:
    """The settings of a run that make it run the plan, by their dotted names."""
    sharded = [table for table in plan.tables if table.sharding != "replicated"]
    by_node = any(table.sharding in _BY_NODE for table in sharded)
    return {
        "mesh.stages": plan.stages,
        "mesh.replicas": plan.replicas,
        "mesh.cuts": list(plan.cuts),
        "batch_size": plan.batch_size,
        "schedule.name": plan.schedule,
        "schedule.microbatches": plan.microbatches,
        "schedule.embedding": plan.embedding,
        **({"schedule.chunks": plan.chunks} if plan.chunks else {}),
        **({"tables.local_size": plan.made_for.local_size} if by_node else {}),
        "tables.per_table": {table.table: table.sharding for table in plan.tables},
        "tables.exchange_per_table": {table.table: table.exchange for table in sharded},
        "tables.pins": {table.table: list(table.ranks) for table in sharded},
    }


def apply_plan(plan: Plan, cfg: Any, made_for: MadeFor, tables: Sequence[TableSpec]) -> dict[str, Any]:
    """Sets the fields of a run's configuration that the plan decides.

    Args:
        cfg: a `recpipe.train.config.TrainConfig`, changed in place.
        made_for: the run, for the comparison; see :func:`require_same`.
        tables: the run's tables, in feature order.

    Returns:
        The overrides that were set.

    Raises:
        PlanError: the plan was made for another world, model or data set.
    """
    require_same(plan, made_for, tables)
    values = overrides(plan)
    for key, value in values.items():
        *path, leaf = key.split(".")
        node = cfg
        for name in path:
            node = getattr(node, name)
        setattr(node, leaf, value)
    return values
