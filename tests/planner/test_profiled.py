"""A plan from a profile: what was measured is what is predicted, for the profiled way to keep the tables and for others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from recpipe.cli.main import main
from recpipe.errors import ConfigError
from recpipe.planner.build import rate
from recpipe.planner.designs import Choice, make_design
from recpipe.planner.plan import load_plan
from recpipe.planner.problem import Problem
from recpipe.planner.profiled import profiled
from recpipe.runtime.steady import predict, steady
from recpipe.schedule.profile import Cut, MeshProfile, Profile, profiled_cost
from tests.planner import small
from tests.planner.small import layouts_of

TABLES = {"EL0": (0.3, 0.0), "PL0": (0.2, 0.0), "EU0": (2.0, 0.0), "ED0": (1.5, 0.0)}
ISSUED = {"EO0": (0.0, 0.002), "PO0": (0.4, 0.0), "EG0": (0.3, 0.001)}


def profile(one: Problem) -> Profile:
    """Of two ranks: a tower of 10 ms a 100 rows forward, 20 ms backward, apart 30 ms, whatever the number of stages."""
    whole = {"F0": (1.0, 0.10), "B0": (1.0, 0.20), "OPT0": (0.7, 0.0)}
    half = {"F": (0.5, 0.05), "B": (0.5, 0.10), "I": (0.4, 0.06), "W": (0.8, 0.09), "OPT": (0.6, 0.0)}
    halves = {f"{op}{stage}": line for op, line in half.items() for stage in (0, 1)}
    lines = {**TABLES, **ISSUED}
    ends = {
        **lines,
        **{name.replace("0", "1"): line for name, line in lines.items() if name != "ED0"},
        "ED1": (0.1, 0.0),
    }
    row_bytes = sum(table.unique(one.global_batch / 2) * table.spec.dim * 4 for table in one.tables)
    return Profile(
        "random",
        2,
        one.global_batch,
        {"1": Cut(whole, [], [4e5]), "2": Cut(halves, [400.0], [2e5, 2e5])},
        {"1": MeshProfile(lines, row_bytes, [0.5, 0.5], 0.6), "2": MeshProfile(ends, 2 * row_bytes, [0.5, 0.5], 0.6)},
        0.05,
        1e6,
        [1.0] * len(one.tower.blocks),
    )


def made(seed: int) -> tuple[Problem, Profile]:
    plain = small.problem(seed)
    found = profile(plain)
    return profiled(plain, found, layouts_of(plain)), found


def rated_step(one: Problem, choice: Choice) -> float:
    placed = [(layout.sharding, layout.exchange, tuple(s.rank for s in layout.shards)) for layout in layouts_of(one)]
    return rate(one, make_design(one, choice), placed).step


@pytest.mark.parametrize("mode", ["ahead", "spread"])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_one_stage_takes_what_was_measured(microbatches: int, mode: str) -> None:
    """The same as `simulate cost=profiled`, but for what it takes from statistics: rows by first use, those that are early."""
    one, found = made(3)
    choice = Choice(1, "1f1b", microbatches, mode)
    program = make_design(dataclasses.replace(one, scope=dataclasses.replace(one.scope, steps=5)), choice).program
    expected = steady(predict(program, profiled_cost(found, program))).step
    assert rated_step(one, choice) == pytest.approx(expected, rel=0.05)


def test_the_profiled_tables_take_as_long_as_they_took() -> None:
    one, _ = made(4)
    placed = [(layout.sharding, layout.exchange, tuple(s.rank for s in layout.shards)) for layout in layouts_of(one)]
    times = rate(one, make_design(one, Choice(1, "1f1b", 1, "ahead")), placed).assignment.times
    assert (
        times.lookup == pytest.approx(0.5) and times.update == pytest.approx(2.0) and times.route == pytest.approx(1.5)
    )


def test_a_split_backward_takes_longer_and_stages_share_the_whole() -> None:
    one, _ = made(5)
    node, rows = one.topology.nodes[0], 100.0
    fused, apart = (one.tower.times(rows, node, 2, split).sum(axis=0) * 1e3 for split in (False, True))
    assert fused[0] == apart[0] == pytest.approx(2 * (0.5 + 5.0))
    assert fused[1:].sum() == pytest.approx(2 * (0.5 + 10.0)) and apart[1] == pytest.approx(2 * (0.4 + 6.0))
    assert one.tower.times(rows, node, 1)[:, 0].sum() * 1e3 == pytest.approx(11.0)
    assert one.tower.times(rows, node, 8)[:, 0].sum() == pytest.approx(fused[0] / 1e3)


def test_finding_early_rows_is_paid_only_where_there_are_some() -> None:
    one, _ = made(3)
    issue = {mode: make_design(one, Choice(1, "1f1b", 1, mode)).cost.issue for mode in ("ahead", "route")}
    assert issue["ahead"]["EO0"] == pytest.approx(0.002 * 256) and issue["route"]["EO0"] == pytest.approx(0.4)
    assert "PO0" not in issue["route"]


def test_issuing_deferred_gradients_is_paid_by_the_next_step() -> None:
    one, _ = made(3)
    costs = {mode: make_design(one, Choice(1, "1f1b", 2, mode)).cost for mode in ("ahead", "spread")}
    whole, early = costs["ahead"].issue["EG0"], costs["spread"].early
    assert costs["spread"].issue["EG0"] == pytest.approx(whole * (1 - early))
    assert costs["spread"].issue["DG0"] == pytest.approx(2 * whole * early) and "DG0" not in costs["ahead"].issue


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"world": 4}, "ranks=4, this plan has ranks=2"),
        ({"model": "dlrm"}, "model=dlrm"),
        ({"blocks": [1.0]}, "blocks=1"),
    ],
)
def test_a_profile_of_something_else_is_refused(change: dict, said: str) -> None:
    one = small.problem(3)
    with pytest.raises(ConfigError, match=said):
        profiled(one, dataclasses.replace(profile(one), **change), layouts_of(one))


def test_command_plans_from_a_profile(tmp_path: Path) -> None:
    words = [
        "plan",
        "workload.num_embeddings_per_feature=[1000,40]",
        "planner=quick",
        "batch_size=128",
    ]
    words += ["planner.sensitivity=false", "planner.measure=never", f"planner.out={tmp_path}"]
    assert main(words) == 0
    blocks = len(load_plan(tmp_path / "plan.json").made_for.blocks)
    file = tmp_path / "profile.json"
    dataclasses.replace(profile(small.problem(3)), model="dlrm", blocks=[1.0] * blocks).save(file)
    assert main([*words, "cost=profiled", f"cost.file={file}"]) == 0
    # Two ranks share 256 rows: 10 and 20 ms a hundred rows, forward and backward, and the rest.
    assert 38 < load_plan(tmp_path / "plan.json").predicted["step_ms"] < 60
