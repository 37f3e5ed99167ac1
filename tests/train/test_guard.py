"""Clipping equals the reference under stages and copies; steps that are not finite are left out on all ranks, and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from recpipe.comm import Groups
from recpipe.train import guard
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.reading import read_batches
from recpipe.train.setup import Job, build_job
from tests.ranks import run_ranks
from tests.train.jobs import small_config, verify

CLIPPED = {"dtype": "float64", "optimizer__dense__clip_norm": 0.02, "optimizer__dense__name": "sgd"}


@pytest.mark.parametrize(
    ("world", "stages", "family"), [(1, 1, "1f1b"), (2, 1, "1f1b"), (2, 2, "zb_h1"), (2, 2, "chimera"), (4, 2, "1f1b")]
)
def test_clipping_equals_the_reference(world, stages, family):
    differences = verify(world, **CLIPPED, mesh__stages=stages, schedule__name=family)
    assert max(differences.values()) <= 1e-12, differences


def count_every_copy(job: Job) -> None:
    job.trainer.updates.guard._counted = list(job.place.stages)


def forget_to_clip(job: Job) -> None:
    guard.clip_factor = lambda squares, max_norm: 1.0


@pytest.mark.parametrize("fault", [count_every_copy, forget_to_clip])
def test_controls(fault):
    assert verify(2, fault, **CLIPPED, mesh__stages=2, schedule__name="chimera")["dense_weights"] > 1e-6


def poison(job: Job, bad: set[int], how: str) -> None:
    """Dense values that are not numbers in the steps `bad`, on the rank that reads the last rows of the step."""
    plain, rows = job.dataset.batch, job.cfg.batch_size * job.mesh.replicas

    def batch(split: str, epoch: int, start: int, stop: int) -> Any:
        found = plain(split, epoch, start, stop)
        if found.num_rows and start // rows in bad and stop % rows == 0:
            value = float("nan") if how == "loss" else 3e38
            return replace(found, dense_BD=torch.full_like(found.dense_BD, value))
        return found

    job.dataset.batch = batch


def train(rank: int, world: int, cfg: Any, bad: set[int], left_out: set[int]) -> tuple[list[torch.Tensor], int]:
    job = build_job(cfg, Groups.create())
    poison(job, bad, "loss")
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas)
    batches = (batch for step, batch in enumerate(read_batches(job, feed, 0)) if step not in left_out)
    for _ in job.trainer.run(batches):
        pass
    weights = [p.detach().clone() for p in job.model.parameters() if not p.is_meta]
    rows = [piece.tensor.clone() for entry in job.tables.entries().values() for piece in entry.pieces]
    return [*weights, *rows], job.trainer.updates.guard.skipped


@pytest.mark.parametrize(("world", "stages", "embedding"), [(2, 1, "ahead"), (2, 2, "ahead"), (2, 1, "spread")])
def test_a_step_that_is_not_finite_leaves_no_trace(world, stages, embedding):
    cfg = small_config(
        world, TrainConfig, mesh__stages=stages, optimizer__dense__name="sgd", guard__non_finite="skip",
        schedule__embedding=embedding,
    )  # fmt: skip
    poisoned, absent = (run_ranks(train, world, cfg, bad, left) for bad, left in (({1, 3}, set()), (set(), {1, 3})))
    for (ours, skipped), (theirs, none) in zip(poisoned, absent, strict=True):
        assert (skipped, none) == (2, 0)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_too_many_in_a_row_end_the_run():
    cfg = small_config(2, TrainConfig, guard__non_finite="skip", guard__max_skipped_in_a_row=2)
    with pytest.raises(Exception, match=r"2 steps in a row, up to step 3, had a loss or gradient that is not finite"):
        run_ranks(train, 2, cfg, {2, 3}, set())


def test_the_default_stops_before_anything_is_updated():
    cfg = small_config(2, TrainConfig)
    with pytest.raises(Exception, match=r"the loss is nan at step 2, rows \d+ to \d+ of the epoch; nothing was updated"):
        run_ranks(train, 2, cfg, {2}, set())


def test_a_gradient_that_overflows_is_seen():
    one = guard.StepGuard([0], Groups(0, 1))
    assert one.settle({0: [torch.ones(3)]}, 5)
    with pytest.raises(guard.TrainingError, match="the gradient of stage 0 is not finite at step 6"):
        one.settle({0: [torch.tensor([1.0, float("inf")])]}, 6)
