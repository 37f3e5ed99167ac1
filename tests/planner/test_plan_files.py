"""Plan files: round trip, edits, refusals; and that a run with the plan's settings places tables as the plan says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from recpipe.embedding.placement import PlacementOptions, place_tables
from recpipe.errors import PlanError
from recpipe.planner.build import chosen_of, made_for, to_plan, to_rated
from recpipe.planner.designs import Choice, make_design, table_shape
from recpipe.planner.memory import rank_memory
from recpipe.planner.plan import Plan, PlannedTable, apply_plan, compare, load_plan, overrides, save_plan
from recpipe.planner.problem import Problem
from recpipe.planner.search import search
from recpipe.planner.table_costs import Allowed
from recpipe.planner.topology import Tier, Topology
from tests.planner import small


def found_plan(one: Problem) -> Plan:
    return to_plan(one, search(one, progress=lambda line: None).best, {"step_ms": 1.0})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small.problem(4, ranks=4, num_tables=4)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    return found_plan(problem)


def test_round_trip(plan: Plan, problem: Problem, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert to_rated(problem, again).step == pytest.approx(search(problem, progress=lambda line: None).best.step)


def edited(plan: Plan, tmp_path: Path, change: dict, table: dict | None = None) -> Path:
    values = plan.to_json() | change
    values = json.loads(json.dumps(values))
    values["tables"][0] |= table or {}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    return path


def test_an_edited_file_is_rated_as_edited(plan: Plan, problem: Problem, tmp_path: Path) -> None:
    path = edited(plan, tmp_path, {}, {"sharding": "table_wise", "exchange": "window", "ranks": [2]})
    again = load_plan(path)
    kind, ranks = to_rated(problem, again).assignment.chosen[0]
    assert (kind.sharding, ranks) == ("table_wise", (2,))
    lines = compare(plan, again)
    assert len(lines) == 1 and "table_wise window [2]" in lines[0]


@pytest.mark.parametrize(
    ("change", "table", "said"),
    [
        ({"format": "recpipe-plan/0"}, {}, "format recpipe-plan/0"),
        ({"stage": 2}, {}, "did you mean stages"),
        ({"stages": 3}, {}, "are not 4 ranks"),
        ({"batch_size": 1}, {}, "global batch"),
        ({"cuts": ["block_9"]}, {}, "names block 'block_9'"),
        ({}, {"sharding": "row_wisely"}, "did you mean row_wise"),
        ({}, {"ranks": [4], "sharding": "table_wise"}, "ranks [4] of 4"),
        ({}, {"exchange": "both"}, "neither window nor pooled"),
        ({}, {"dimension": 4}, "no key of a plan"),
        ({}, {"ranks": [0, 1, 2, 3], "sharding": "column_wise", "dim": 2}, "2 columns cannot be cut in 4"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(plan: Plan, tmp_path: Path, change: dict, table: dict, said: str) -> None:
    with pytest.raises(PlanError) as error:
        load_plan(edited(plan, tmp_path, change, table))
    assert said in str(error.value)


def test_another_world_model_or_data_is_refused_with_the_differences(plan: Plan, problem: Problem) -> None:
    specs = [table.spec for table in problem.tables]
    here = made_for(problem)
    cases = [
        (dataclasses.replace(here, world=8), specs, "world: the plan has 4, this run 8"),
        (dataclasses.replace(here, model="dlrm"), specs, "model: the plan has random, this run dlrm"),
        (dataclasses.replace(here, data="criteo"), specs, "data: the plan has random, this run criteo"),
        (dataclasses.replace(here, global_batch=99), specs, "global_batch"),
        (here, [dataclasses.replace(specs[0], num_rows=7), *specs[1:]], "table t_0: the plan has"),
        (here, specs[1:], "table t_0: only in the plan"),
        (here, [*specs[1:], specs[0]], "in another order"),
    ]
    for run, tables, said in cases:
        with pytest.raises(PlanError) as error:
            apply_plan(plan, SimpleNamespace(), run, tables)
        assert said in str(error.value)


def test_apply_sets_what_the_plan_decides(plan: Plan, problem: Problem) -> None:
    cfg = SimpleNamespace(
        mesh=SimpleNamespace(stages=1, replicas=None, cuts=[]),
        schedule=SimpleNamespace(name="gpipe", microbatches=1, embedding="step", chunks=2),
        tables=SimpleNamespace(per_table={}, exchange_per_table={}, pins={}, local_size=1),
        batch_size=1,
    )
    apply_plan(plan, cfg, made_for(problem), [table.spec for table in problem.tables])
    assert cfg.batch_size * cfg.mesh.replicas == problem.global_batch
    assert (cfg.mesh.stages, cfg.schedule.name, cfg.mesh.cuts) == (plan.stages, plan.schedule, list(plan.cuts))
    assert set(cfg.tables.per_table) == {table.table for table in plan.tables}


def nodes_problem() -> Problem:
    """Two nodes of four ranks, a table of each type."""
    one = small.problem(2, ranks=4, num_tables=7)
    group = dataclasses.replace(one.topology.nodes[0], count=2, memory=1e9)
    top = Topology("nodes", (group,), Tier(1e-5, 1e10), Tier(1e-5, 1e9))
    tables = tuple(
        dataclasses.replace(t, spec=dataclasses.replace(t.spec, num_rows=64 + 100 * i))
        for i, t in enumerate(one.tables)
    )
    types = ("table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", "grid", "replicated")
    rules = {t.spec.name: Allowed((kind,), ("window",)) for t, kind in zip(tables, types, strict=True)}
    return dataclasses.replace(one, topology=top, tables=tables, allowed=rules)


def test_every_type_is_placed_by_a_run_as_the_plan_says() -> None:
    one = nodes_problem()
    plan = found_plan(one)
    values = overrides(plan)
    options = PlacementOptions(
        local_size=values["tables.local_size"],
        per_table=values["tables.per_table"],
        exchange_per_table=values["tables.exchange_per_table"],
        pins=values["tables.pins"],
    )
    specs = [table.spec for table in one.tables]
    layouts = place_tables(specs, one.topology.world, options)
    assert [layout.shards for layout in layouts] == [layout.shards for layout in plan.layouts()]
    rated = to_rated(one, plan)
    for layout, (kind, ranks) in zip(layouts, rated.assignment.chosen, strict=True):
        if not kind.replicated:
            assert [shard.rank for shard in layout.shards] == list(ranks), layout.sharding
            held = [shard.num_rows * shard.num_cols * 4 for shard in layout.shards]
            assert held == pytest.approx(kind.held.tolist())


def test_memory_counts_every_table_byte_once() -> None:
    one = nodes_problem()
    rated = to_rated(one, found_plan(one))
    memory = rank_memory(one, rated.design, rated.assignment.chosen)
    copies = [one.topology.world if kind.replicated else 1 for kind, _ in rated.assignment.chosen]
    elements = sum(t.spec.num_elements * n for t, n in zip(one.tables, copies, strict=True))
    assert sum(part.tables for part in memory) == pytest.approx(4 * elements)
    assert max(part.total for part in memory) <= 1e9


def test_a_grid_survives_the_file() -> None:
    one = nodes_problem()
    design = make_design(one, Choice(1, "1f1b", 1, "ahead"))
    shape = table_shape(one, len(design.consumers))
    kind, ranks = chosen_of(one, 5, shape, "grid", "window", range(8))
    assert ranks == (0, 4, 1, 5, 2, 6, 3, 7) and (kind.row_blocks, kind.col_blocks) == (4, 2)
    table = PlannedTable("t_5", one.tables[5].spec.num_rows, 8, "grid", "window", tuple(range(8)))
    from recpipe.planner.plan import layout_of

    assert [shard.rank for shard in layout_of(table, 4).shards] == list(ranks)
