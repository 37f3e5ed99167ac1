"""`recpipe plan` as a user types it, its topologies, and TorchRec's planner as a candidate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recpipe.cli.main import main
from recpipe.embedding.torchrec_planner import Machines, torchrec_plan
from recpipe.planner.build import to_rated
from recpipe.planner.inputs import _limited
from recpipe.planner.plan import apply_plan, load_plan
from recpipe.planner.problem import Scope
from recpipe.planner.search import search
from recpipe.planner.settings import ConstraintSettings, PlannerSettings, to_allowed
from recpipe.planner.topology import Nodes, Tier, Topology, TopologySettings, to_topology
from recpipe.planner.torchrec_plan import torchrec_seed
from recpipe.train.config import TablesConfig
from tests.planner import small

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGIES = sorted((ROOT / "conf" / "topology").glob("*.yaml"))
STATED = ["workload.num_embeddings_per_feature=[1000,40,70000,3]", "topology=h100_1x8", "planner=quick"]


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_topology_files(path: Path) -> None:
    node = OmegaConf.merge(OmegaConf.structured(TopologySettings), OmegaConf.load(path))
    holder = OmegaConf.create({"topology": node, "launch": {"nproc": 2}})
    top = to_topology(OmegaConf.to_object(holder.topology))
    assert top.name == path.stem and top.world == sum(g.count * g.ranks for g in top.nodes)
    assert len(top.node_of) == top.world
    text = path.read_text()
    assert top.measured or "# [1]" in text or "sources as in" in text


def run(*words: str) -> int:
    return main(["plan", *words])


def test_command_writes_a_plan_that_can_be_forced_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(*STATED, f"planner.out={tmp_path / 'a'}") == 0
    assert "plan for h100_1x8: 8 ranks" in capsys.readouterr().out
    plan = load_plan(tmp_path / "a" / "plan.json")
    assert plan.made_for.world == 8 and len(plan.tables) == 4
    assert json.loads((tmp_path / "a" / "overrides.json").read_text())["mesh.stages"] == plan.stages
    assert "<svg" in (tmp_path / "a" / "report.html").read_text()
    given = [f"planner.plan={tmp_path / 'a' / 'plan.json'}", f"planner.compare={tmp_path / 'a' / 'plan.json'}"]
    assert run(*STATED, *given, f"planner.out={tmp_path / 'b'}", "-v") == 0
    assert "  none" in capsys.readouterr().out
    assert load_plan(tmp_path / "b" / "plan.json").predicted["step_ms"] == pytest.approx(plan.predicted["step_ms"])
    assert run("workload.num_embeddings_per_feature=[1001,40,70000,3]", *STATED[1:], *given[:1]) == 1
    assert "table t_cat_0: the plan has 1,000 x 16, this run 1,001 x 16" in capsys.readouterr().err


def test_a_sweep_is_a_sizing_table(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--multirun", "topology=h100_1x8,a100_4x8", *STATED[:1], *STATED[2:]) == 0
    lines = [line for line in capsys.readouterr().out.split("\n") if line]
    assert lines[0].split()[0] == "topology" and lines[1].startswith("h100_1x8") and lines[2].startswith("a100_4x8")
    assert len(list(tmp_path.glob("runs/plan/multirun-*/sizing.txt"))) == 1


def test_nothing_fits_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(*STATED, "planner.memory_gb=0.0001", f"planner.out={tmp_path}") == 1
    assert "nothing fits h100_1x8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["planner.schedules=[1f1c]"], "did you mean 1f1b"),
        (["planner.stages=[2,3]"], "3 does not divide the 8 ranks"),
        (["planner.microbatches=[0]"], "each must be at least 1"),
        (["workload.skew=[-1]"], "each must be at least 0"),
        (["workload.multi_hot_sizes=[0]"], "each must be positive"),
        (["planner.embedding=[]"], "leaves nothing to try"),
        (["planner.constraints={t_cat_9: {sharding: [row_wise]}}"], "fits no table"),
        (["planner.constraints={t_cat_1: {sharding: [table_wise], exclude: [table_wise]}}"], "leave no sharding type"),
        (["planner.constraints={t_cat_1: {ranks: [8]}}"], "pinned to ranks [8]"),
        (["planner.plan=missing.json"], "cannot be read"),
        (["workload.multi_hot_sizes=[1,2]"], "2 entries for 4 tables"),
        (["schedule=gpipe"], "planner.schedules"),
        (["planner.memory_gb=1000"], "planner.memory_gb=1000: a rank of topology h100_1x8 has 80 GB"),
        (["planner.schedules=[cyclic]"], "executed as plain data parallel for now"),
        (["planner.constraints={t_cat_1: {ranks: [1,1]}}"], "of which one stands twice"),
        (["topology.far.bandwidth_gbs=inf"], "topology.far.bandwidth_gbs=inf"),
        (["topology.near.alpha_us=nan"], "topology.near.alpha_us=nan"),
        (["epochs=2"], "recpipe plan runs nothing"),
    ],
)
def test_wrong_settings(words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert run(*STATED, *words) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_limit_between_two_kinds_of_machines_is_the_smaller_one_for_the_smaller() -> None:
    """Case 108: the planner never counts on more memory than a rank has."""
    small_one, large_one = (Nodes(1, 2, size, 1e12, 1e11, 1e11, 1e-6, 1e-9) for size in (40e9, 80e9))
    link = Tier(1e-5, 1e10)
    limited = _limited(Topology("two", (small_one, large_one), link, link), 60.0)
    assert [group.memory for group in limited.nodes] == [40e9, 60e9]


def test_constraints_of_the_run_and_of_the_planner_meet() -> None:
    settings = PlannerSettings(constraints={"t_a*": ConstraintSettings(exclude=["replicated"], exchange=["window"])})
    tables = TablesConfig(per_table={"t_b": "row_wise"}, pins={"t_a1": [2]})
    allowed = to_allowed(["t_a1", "t_a2", "t_b"], settings, tables, 4)
    assert allowed["t_a1"].sharding == ("table_wise",) and allowed["t_a1"].ranks == (2,)
    assert "replicated" not in allowed["t_a2"].sharding and allowed["t_a2"].exchanges == ("window",)
    assert allowed["t_b"].sharding == ("row_wise",)


def test_torchrecs_plan_is_read_in_our_names() -> None:
    one = small.problem(0, ranks=8, num_tables=3)
    specs = [table.spec for table in one.tables]
    machines = Machines(8, 8, True, 80e9, 2e12, 3e11, 4e10)
    plan = torchrec_plan(specs, [1.0, 20.0, 3.0], 512, machines, "sgd")
    assert set(plan) == {spec.name for spec in specs}
    assert all(table.ranks or table.sharding == "replicated" for table in plan.values())


@pytest.mark.parametrize("seed", range(8))
def test_never_slower_than_torchrecs_own_plan(seed: int) -> None:
    """TorchRec's tables under their best schedule, in the same simulator; without its help, and with it as a candidate."""
    scope = Scope((1, 2), (1, 2), ("1f1b",), ("ahead", "step"), (2,), 60.0, 1500, 3)
    one = small.problem(seed + 50, ranks=4, num_tables=5, scope=scope)
    nodes = tuple(dataclasses.replace(group, memory=8e9) for group in one.topology.nodes)
    one = dataclasses.replace(one, allowed={}, topology=dataclasses.replace(one.topology, nodes=nodes))
    found = search(one, {"torchrec": torchrec_seed}, progress=lambda line: None)
    alone = search(one, progress=lambda line: None)
    theirs = found.named["torchrec"]
    again = to_rated(one, _as_plan(one, theirs))
    assert again.step == pytest.approx(theirs.step)
    assert found.best.step <= theirs.step
    assert alone.best.step <= theirs.step


def _as_plan(one, rated):  # type: ignore[no-untyped-def]
    from recpipe.planner.build import to_plan

    return to_plan(one, rated)


def test_a_run_is_shown_beside_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    summary = {
        "rows_per_s": 1e6,
        "world_size": 8,
        "global_batch": 8192,
        "table_bytes_by_rank": [1000] * 8,
        "bytes_sent_per_step": {"ids": 80.0, "rows": 8e6, "row_gradients": 8e6, "dense": 1.0},
    }
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(summary))
    assert run(*STATED, f"planner.measured={path}", f"planner.out={tmp_path}") == 0
    text = capsys.readouterr().out
    assert "predicted and measured" in text and "rows bytes a rank and step" in text and "8.192" in text
    assert "Predicted and measured" in (tmp_path / "report.html").read_text()
    path.write_text(json.dumps(summary | {"world_size": 4}))
    assert run(*STATED, f"planner.measured={path}", f"planner.out={tmp_path}") == 1
    assert "world_size is 4, the plan has 8" in capsys.readouterr().err


def test_a_training_run_can_be_planned() -> None:
    """What `train plan=auto` needs: a plan from a training configuration alone, that places tables as it says."""
    from recpipe.data.config import SyntheticData
    from recpipe.embedding.placement import PlacementOptions, place_tables
    from recpipe.model import build_model
    from recpipe.model.config import DlrmConfig
    from recpipe.planner.measure import LOOPBACK
    from recpipe.planner.session import plan_for_run
    from recpipe.planner.topology import Nodes, Topology
    from recpipe.train.config import TrainConfig

    cfg = TrainConfig(data=SyntheticData(num_train=5000, num_features=6), model=DlrmConfig(), batch_size=128)
    top = Topology("local", (Nodes(1, 2, 1e9, 1e11, 4e9, 1e10, 3e-6, 1.5e-8),), LOOPBACK, LOOPBACK, "sync", 0.1)
    plan = plan_for_run(cfg, top)
    assert plan.made_for.world == 2 and plan.made_for.global_batch == 256 and plan.made_for.data == "synthetic"
    schema_tables = [(table.table, table.num_rows) for table in plan.tables]
    from recpipe.data import open_dataset

    model = build_model(cfg.model, open_dataset(cfg.data).schema, device="meta")
    assert schema_tables == [(spec.name, spec.num_rows) for spec in model.tables]
    values = plan.to_json()
    apply_plan(plan, cfg, plan.made_for, model.tables)
    options = PlacementOptions(
        per_table=cfg.tables.per_table, exchange_per_table=cfg.tables.exchange_per_table, pins=cfg.tables.pins
    )
    assert [one.shards for one in place_tables(model.tables, 2, options)] == [one.shards for one in plan.layouts()]
    assert cfg.mesh.stages == values["stages"] and cfg.schedule.microbatches == values["microbatches"]


def test_a_table_larger_than_this_machine_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Nothing of a table is made: 1.6 TB of rows, by stated numbers."""
    words = ["workload.num_embeddings_per_feature=[3000000000,40]", "topology=h100_16x8"]
    words += ["model.embedding_dim=128", "model.dense_arch_layer_sizes=[64,128]"]
    assert run(*words, "planner=quick", "planner.sensitivity=false", f"planner.out={tmp_path}") == 0
    assert max(table.num_rows for table in load_plan(tmp_path / "plan.json").tables) == 3_000_000_000
