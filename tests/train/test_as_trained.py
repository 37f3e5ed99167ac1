"""The configuration that a run records is the one it trains with, in whatever mesh it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recpipe.comm import Groups
from recpipe.train.config_text import from_yaml
from recpipe.train.session import run_train
from tests.ranks import run_ranks
from tests.train.jobs import small_config


def train(rank: int, world: int, cfg: Any) -> int:
    return run_train(cfg, Groups.create())


def test_the_batch_of_a_replica_follows_the_mesh_and_the_global_batch_stays(tmp_path):
    """8 rows a replica on two are 16 on one, 4 on four, and 5 or 6 on three."""
    kept = {"data__num_train": 130, "log__progress": "none", "run__dir": str(tmp_path), "batch_size": 8}
    for epoch, (world, batch_size) in enumerate([(2, 8), (1, 16), (4, 4), (3, 6)], 1):
        run_ranks(train, world, small_config(world, **kept, epochs=epoch, resume="auto"))
        recorded = from_yaml((tmp_path / "config.yaml").read_text())
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert (recorded.batch_size, summary["global_batch"], summary["steps"]) == (batch_size, 16, 9 * epoch)


def test_another_batch_size_is_taken_when_it_is_given(tmp_path, capfd: pytest.CaptureFixture[str]):
    kept = {"data__num_train": 130, "log__progress": "none", "run__dir": str(tmp_path), "resume": "auto"}
    run_ranks(train, 2, small_config(2, **kept, batch_size=8))
    run_ranks(train, 1, small_config(1, **kept, batch_size=10, epochs=2))
    assert from_yaml((tmp_path / "config.yaml").read_text()).batch_size == 10
    assert json.loads((tmp_path / "summary.json").read_text())["global_batch"] == 10
