"""A run that the planner planned, and its figures beside the predicted ones in the same report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recpipe.cli.main import main
from recpipe.planner.plan import load_plan
from tests.train.jobs import SMALL


def test_an_automatic_plan_is_reported_with_what_was_measured(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    sizes = {**SMALL, "data.num_train": 1024, "batch_size": 64, "launch.nproc": 2}
    words = [f"{key}={value}" for key, value in sizes.items()] + ["model.dense_arch_layer_sizes=[16,8]"]
    run, out = tmp_path / "run", tmp_path / "report"
    assert main(["train", "plan=auto", *words, "save_checkpoint=false", f"run.dir={run}"]) == 0
    plan, summary = load_plan(run / "planned.json"), json.loads((run / "summary.json").read_text())
    assert plan.made_for.world == 2 and plan.made_for.global_batch == 128
    files = [f"planner.plan={run / 'planned.json'}", f"planner.measured={run / 'summary.json'}", f"planner.out={out}"]
    capfd.readouterr()
    planned = [word for word in words if not word.startswith("launch.nproc")]
    assert main(["plan", *planned, *files, "planner.sensitivity=false"]) == 0
    assert "predicted and measured" in capfd.readouterr().out
    beside = {one["name"]: one for one in load_plan(out / "plan.json").predicted["measured"]}
    assert beside["step ms"]["measured"] == pytest.approx(128 / summary["rows_per_s"] * 1e3)
    assert beside["table bytes of rank 1"]["measured"] == summary["table_bytes_by_rank"][1]
    for name in ("table bytes of rank 0", "table bytes of rank 1"):
        assert beside[name]["predicted"] == pytest.approx(beside[name]["measured"], rel=0.1)
    sent = {name: one for name, one in beside.items() if name.endswith("bytes a rank and step")}
    predicted, measured = (sum(one[key] for one in sent.values()) for key in ("predicted", "measured"))
    assert sent and predicted == pytest.approx(measured, rel=0.1)
    assert "Predicted and measured" in (out / "report.html").read_text()
