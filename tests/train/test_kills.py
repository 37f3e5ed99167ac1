"""The short form of tools/kill_soak.py: a rank is killed in a phase of a run; who goes on from what is left gets the same bits.

Ranks are forks of this process, which saves the start of a launcher: that is tested in test_failures.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from tests.ranks import run_ranks
from tests.train import resuming
from tests.train.faults import Fault, count_calls, plant
from tests.train.jobs import small_config
from tools.kill_soak import COMMON, SCHEDULES, draw

SEED = 1


def train(rank: int, world: int, cfg: Any, fault: Fault | None) -> dict[str, Any]:
    """A run, with the number of calls of this rank in each phase."""
    counts = count_calls()
    if fault is not None:
        plant(fault, rank)
    return {**resuming.train(rank, world, cfg), "counts": dict(counts)}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("2 replicas, pooled", "exchange"),
        ("zb_h1, 2 stages, async", "saving"),
        ("chimera, 2 stages", "row_update"),
        ("2 replicas", "publishing"),
    ],
)
def test_a_kill_and_the_same_bits(name, phase, tmp_path):
    world, extra = SCHEDULES[name]
    settings = {**COMMON, **extra, "epochs": 1, "data__num_train": 130}
    plain = run_ranks(train, world, small_config(world, **settings, run__dir=str(tmp_path / "plain")), None)
    fault = draw(random.Random(f"{SEED} {name}"), [{phase: one["counts"].get(phase, 0)} for one in plain], phase)
    print(f"seed {SEED}: {name}, {fault}")
    settings["run__dir"] = str(tmp_path / "struck")
    mark = tmp_path / "killed"
    # Which rank is heard first is chance: the one that was killed or the one that lost it.
    with pytest.raises((ProcessExitedException, ProcessRaisedException)):
        run_ranks(train, world, small_config(world, **settings), replace(fault, mark=str(mark)))
    assert mark.exists()
    resumed = run_ranks(train, world, small_config(world, **settings, resume="auto"), None)
    resuming.assert_bits(resuming.whole(resumed), resuming.whole(plain))
    assert resumed[0]["progress"].rows == 130
