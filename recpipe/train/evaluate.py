"""Scores every row of a split exactly once, under uneven ranks, in the middle of training or alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch

from recpipe.comm import Groups
from recpipe.data import Dataset, Loader
from recpipe.errors import TrainingError
from recpipe.train.feed import Feed
from recpipe.train.metrics import Report, evaluate
from recpipe.train.trainer import PreparedStep, Scorer


def score_split(
    scorer: Scorer, dataset: Dataset, split: str, groups: Groups, batch_size: int, limit: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all rows of a split, in row order, on every rank; collective.

    Args:
        batch_size: rows of a rank in a step.
        limit: at most this many steps.

    Raises:
        TrainingError: a row is missing or was scored twice.
    """
    feed = Feed(dataset.num_rows(split), batch_size, groups.world, limit=limit)
    loader = Loader(dataset, split, 0, feed.shares(groups.rank), num_workers=1)
    was_training = scorer.model.training
    scorer.model.eval()
    positions, logits, labels = [], [], []
    for prepared, row_logits in _pipelined(scorer, loader):
        batch = prepared.batch
        positions.append(torch.arange(batch.first_row, batch.first_row + batch.num_rows))
        logits.append(row_logits.double())
        labels.append(batch.labels_B.double())
    scorer.model.train(was_training)
    dropped = int(groups.sum_cpu(torch.tensor([_num_dropped(feed, groups.rank, positions)])))
    columns = [torch.cat(parts) if parts else torch.empty(0) for parts in (positions, logits, labels)]
    place, all_logits, all_labels = (groups.gather_cpu(column.double()) for column in columns)
    if place.numel() + dropped != feed.num_used_rows or torch.unique(place).numel() != place.numel():
        raise TrainingError(
            f"{place.numel()} rows of {split} were scored, {torch.unique(place).numel()} of them distinct, "
            f"of {feed.num_used_rows}"
        )
    order = torch.argsort(place)
    return all_logits[order], all_labels[order]


def evaluate_split(
    scorer: Scorer, dataset: Dataset, split: str, groups: Groups, batch_size: int, limit: int | None
) -> tuple[Report, list[str]]:
    """Metrics of a split from pooled scores, and remarks; the same on every rank."""
    logits, labels = score_split(scorer, dataset, split, groups, batch_size, limit)
    return evaluate(logits, labels)


def _num_dropped(feed: Feed, rank: int, positions: list[torch.Tensor]) -> int:
    """Rows of this rank's shares that a policy dropped."""
    asked = sum(stop - start for start, stop in feed.shares(rank))
    return asked - sum(part.numel() for part in positions)


def _pipelined(scorer: Scorer, loader: Loader) -> Iterator[tuple[PreparedStep, torch.Tensor]]:
    """Routes the ids of the next step while the current one is scored."""
    current: PreparedStep | None = None
    for batch in chain(loader, [None]):
        following = None if batch is None else scorer.score(batch)
        if following is not None:
            following.tables.request()
        if current is not None:
            yield current, scorer.logits(current)
        current = following
