"""Rows whose updates are deferred are brought up to date before anybody looks: savers, scorers, the end of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recpipe.comm import Groups
from recpipe.embedding.state import table_entries
from recpipe.embedding.tables import ShardedTables
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.reading import read_batches
from recpipe.train.setup import Job, build_job
from tests.ranks import run_ranks
from tests.train.jobs import small_config


def saved(job: Job) -> dict[str, list[torch.Tensor]]:
    return {name: [piece.tensor.clone() for piece in entry.pieces] for name, entry in job.tables.entries().items()}


def scored(job: Job) -> dict[str, list[torch.Tensor]]:
    feed = Feed(job.dataset.num_rows("valid"), job.cfg.batch_size, job.mesh.replicas)
    results = job.trainer.score(job.dataset.batch("valid", 0, *share) for share in feed.shares(job.place.consumer))
    return {"logits": [result.logits_B for result in results]}


def looked_at(rank: int, world: int, cfg: Any, look: Any, forgets: bool = False) -> tuple[list[Any], int]:
    """What `look` finds after every second step and at the end, and how often updates were deferred by then."""
    job = build_job(cfg, Groups.create())
    if forgets:
        ShardedTables.entries = lambda self: table_entries(self.window.store)
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas)
    found, deferred = [], 0
    for number, _ in enumerate(job.trainer.run(read_batches(job, feed, 0))):
        if number % 2:
            deferred += job.tables.deferred is not None
            found.append(look(job))
    return [*found, look(job)], deferred


def config(embedding: str) -> Any:
    settings = {"data__min_ids": 20, "dtype": "float64", "tables__sharding": "row_wise"}
    return small_config(2, TrainConfig, schedule__embedding=embedding, **settings)


@pytest.mark.parametrize("look", [saved, scored])
def test_what_is_seen_is_up_to_date(look):
    spread, plain = (run_ranks(looked_at, 2, config(mode), look) for mode in ("spread", "route"))
    assert spread[0][1] > 0 == plain[0][1]
    for (mine, _), (other, _) in zip(spread, plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_control_a_saver_that_does_not_settle_is_seen():
    stale, plain = (run_ranks(looked_at, 2, config("spread"), saved, forgets) for forgets in (True, False))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(stale[0][0], plain[0][0], rtol=0, atol=1e-12)
