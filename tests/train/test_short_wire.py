"""Dense gradients in 16 bits on their way: copies of the tower stay equal bit for bit, and near the run in 32 bits."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch

from recpipe.comm import Groups
from recpipe.train.config import TrainConfig
from recpipe.train.reading import read_epochs
from recpipe.train.setup import build_job
from tests.ranks import run_ranks
from tests.train.jobs import small_config

STEPS = 12
SHORT = {"exchange__dense_wire_dtype": "bfloat16"}
PLAIN = {"optimizer__dense__name": "sgd", "optimizer__dense__learning_rate": 0.1}


def train(rank: int, world: int, cfg: Any) -> list[dict[int, torch.Tensor]]:
    """Weights of this rank's stages after each step."""
    job = build_job(cfg, Groups.create())
    stages = job.trainer.executor._stages
    return [
        {index: torch.cat([w.detach().flatten() for w in stage.weights]) for index, stage in stages.items()}
        for _ in job.trainer.run(islice(read_epochs(job), STEPS))
    ]


@cache
def weights(world: int, short: bool, *settings: tuple[str, Any]) -> list[list[dict[int, torch.Tensor]]]:
    chosen = {**PLAIN, **(SHORT if short else {}), **dict(settings)}
    return run_ranks(train, world, small_config(world, TrainConfig, epochs=3, **chosen))


def largest_difference(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> float:
    return max(float((one[stage] - other[stage]).abs().max()) for stage in one)


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (2, {}),
        (4, {}),
        (2, {"schedule__microbatches": 3, "optimizer__dense__clip_norm": 0.01}),
        (2, {"mesh__stages": 2, "schedule__name": "chimera"}),
        (4, {"mesh__stages": 2}),
    ],
    ids=["2x1", "4x1", "clipped", "chimera", "2x2"],
)
def test_copies_stay_equal_and_near_the_run_in_32_bits(world, settings):
    short, plain = (weights(world, flag, *settings.items()) for flag in (True, False))
    held = [{stage for stage in ranks[0]} for ranks in short]
    for step in range(STEPS):
        for stage in set().union(*held):
            first, *others = [short[rank][step][stage] for rank in range(world) if stage in held[rank]]
            assert others
            assert all(torch.equal(first, other) for other in others)
    moved = largest_difference(plain[0][0], plain[0][-1])
    apart = max(largest_difference(ours[-1], theirs[-1]) for ours, theirs in zip(short, plain, strict=True))
    assert 0 < apart < 0.02 * moved


def test_alone_and_in_a_pipeline_without_copies_nothing_changes():
    for world, settings in ((1, {}), (2, {"mesh__stages": 2})):
        short, plain = (weights(world, flag, *settings.items()) for flag in (True, False))
        assert all(largest_difference(ours[-1], theirs[-1]) == 0 for ours, theirs in zip(short, plain, strict=True))
