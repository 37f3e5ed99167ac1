"""`plan=auto` and `plan=FILE` in a run: the plan decides, the result stays exact, a plan for something else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recpipe.comm import Groups
from recpipe.planner.plan import save_plan
from recpipe.planner.session import plan_for_run
from recpipe.train.config import VerifyConfig
from recpipe.train.planned import _topology, apply_plan_setting
from recpipe.train.setup import build_job
from recpipe.train.verify import compare_with_reference
from tests.ranks import run_ranks
from tests.train.jobs import small_config


def planned(rank: int, world: int, cfg: Any) -> tuple[dict[str, float], list[str]]:
    groups = Groups.create()
    apply_plan_setting(cfg, groups)
    job = build_job(cfg, groups)
    return compare_with_reference(job, 12), [layout.sharding for layout in job.tables.layouts]


def test_auto_plans_and_stays_exact():
    cfg = small_config(2, VerifyConfig, plan="auto", dtype="float64")
    (differences, shardings), (_, others) = run_ranks(planned, 2, cfg)
    assert shardings == others
    assert max(differences.values()) <= 1e-12


def test_a_file_decides_and_another_model_is_refused(tmp_path: Path):
    file, cfg = tmp_path / "plan.json", small_config(2, VerifyConfig, dtype="float64")
    save_plan(plan_for_run(cfg, _topology(2)), file)
    values = json.loads(file.read_text())
    cfg.plan = str(file)
    differences, shardings = run_ranks(planned, 2, cfg)[0]
    assert shardings == [table["sharding"] for table in values["tables"]]
    assert max(differences.values()) <= 1e-12
    other = small_config(2, VerifyConfig, model="dcn_v2", plan=str(file), dtype="float64")
    with pytest.raises(Exception, match="dcn_v2"):
        run_ranks(planned, 2, other)

