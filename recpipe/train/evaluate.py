"""Scores every row of a split exactly once, under uneven ranks, in the middle of training or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from recpipe.comm import Groups
from recpipe.data import Dataset, Loader
from recpipe.errors import TrainingError
from recpipe.runtime.running import StepResult
from recpipe.train.feed import Feed
from recpipe.train.metrics import Report, evaluate
from recpipe.train.trainer import Scorer


class ScoringLeft(Exception):
    """A split was left between two batches, on all ranks at the same one."""


def score_split(
    scorer: Scorer,
    dataset: Dataset,
    split: str,
    groups: Groups,
    batch_size: int,
    limit: int | None,
    leaves: Callable[[], bool] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all rows of a split, in row order, on every rank; collective.

    Args:
        batch_size: rows of a consumer in a step.
        limit: at most this many steps.
        leaves: asked after each batch; has to answer the same on every rank.

    Raises:
        ScoringLeft: it answered yes.
        TrainingError: a row is missing or was scored twice.
    """
    place = scorer.place
    feed = Feed(dataset.num_rows(split), batch_size, place.num_consumers, limit=limit)
    loader = Loader(dataset, split, 0, feed.shares(place.consumer), num_workers=1)
    was_training = scorer.model.training
    scorer.model.eval()
    try:
        results = list(_scored(scorer, loader, leaves))
    finally:
        scorer.model.train(was_training)
    dropped = int(groups.sum_cpu(torch.tensor([sum(result.num_dropped for result in results)])))
    columns = [_column(results, name) for name in ("rows_B", "logits_B", "labels_B")]
    place_N, all_logits, all_labels = (groups.gather_cpu(column) for column in columns)
    if place_N.numel() + dropped != feed.num_used_rows or torch.unique(place_N).numel() != place_N.numel():
        raise TrainingError(
            f"{place_N.numel()} rows of {split} were scored, {torch.unique(place_N).numel()} of them distinct, "
            f"of {feed.num_used_rows}"
        )
    order = torch.argsort(place_N)
    return all_logits[order], all_labels[order]


def _scored(scorer: Scorer, loader: Loader, leaves: Callable[[], bool] | None) -> Iterator[StepResult]:
    for result in scorer.score(iter(loader)):
        yield result
        if leaves is not None and leaves():
            raise ScoringLeft


def evaluate_split(
    scorer: Scorer,
    dataset: Dataset,
    split: str,
    groups: Groups,
    batch_size: int,
    limit: int | None,
    leaves: Callable[[], bool] | None = None,
) -> tuple[Report, list[str]]:
    """Metrics of a split from pooled scores, and remarks; the same on every rank. Raises as `score_split`."""
    return evaluate(*score_split(scorer, dataset, split, groups, batch_size, limit, leaves))


def _column(results: Sequence[StepResult], name: str) -> torch.Tensor:
    """One column of all rows scored on this rank, float64."""
    return torch.cat([torch.empty(0).double(), *(getattr(result, name).double() for result in results)])
