"""Cases 27 and 28: a resumed run asks for the rows that are left and no others; each rank has its random state again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recpipe.data import Dataset
from tests.ranks import run_ranks
from tests.train import resuming
from tests.train.jobs import small_config


def ranges(rank: int, world: int, cfg: Any) -> list[tuple[int, int]]:
    """Ranges of training rows that this rank read in a run."""
    seen, batch = [], Dataset.batch

    def recorded(self: Dataset, split: str, epoch: int, start: int, stop: int) -> Any:
        if split == "train" and start < stop:
            seen.append((start, stop))
        return batch(self, split, epoch, start, stop)

    Dataset.batch = recorded  # type: ignore[method-assign]
    resuming.train(rank, world, cfg)
    return seen


@pytest.mark.parametrize("world", [1, 2, 3])
def test_only_the_rest_is_read(tmp_path, world):
    settings = {
        "data__num_train": 130,
        "run__dir": str(tmp_path),
        "data__num_workers": 2,
        "checkpoint__every_minutes": 0.0,
    }
    assert resuming.run(2, small_config(2, **settings), stop_at=4)["progress"].row == 80
    read = run_ranks(ranges, world, small_config(world, **settings, resume="auto"))
    rows = sorted(row for rank in read for start, stop in rank for row in range(start, stop))
    assert rows == list(range(80, 130))


def draws(rank: int, world: int, cfg: Any, seed: int, stop_at: int | None) -> list[float]:
    """What torch's generator of this rank would draw next, at the end of a run that began with it at `seed`."""
    torch.manual_seed(seed + rank)
    resuming.train(rank, world, cfg, stop_at)
    return torch.rand(3).tolist()


def test_random_state_goes_on(tmp_path):
    cfg = small_config(2, run__dir=str(tmp_path), data__num_train=130)
    before = run_ranks(draws, 2, cfg, 7, 4)
    cfg.resume = "auto"
    assert run_ranks(draws, 2, cfg, 100, None) == before
    assert before[0] != before[1]
