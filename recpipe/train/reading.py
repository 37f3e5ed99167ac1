"""The rows that a rank trains on, step by step: read by the consumer itself, or by every rank and handed on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count

from recpipe.batch import Batch
from recpipe.comm import Lane
from recpipe.data import Loader
from recpipe.errors import ConfigError
from recpipe.runtime.hand_on import HandOn
from recpipe.train.feed import Feed
from recpipe.train.setup import Job


def read_batches(job: Job, feed: Feed, epoch: int) -> Iterator[Batch]:
    """One batch a step of an epoch, ahead of training; collective where every rank feeds."""
    workers = job.cfg.data.num_workers
    if job.cfg.mesh.feed == "owner":
        return iter(Loader(job.dataset, "train", epoch, feed.shares(job.place.consumer), workers))
    parts = iter(Loader(job.dataset, "train", epoch, _ranges(job, feed), workers))
    lane = Lane(job.groups.feed, job.groups.rank, job.groups.world, job.traffic, "feed")
    empty = job.dataset.batch("train", epoch, 0, 0)
    schema = job.dataset.schema
    return HandOn(lane, len(schema.features), schema.num_dense).batches(_by_consumer(job, feed, parts), empty)


def whole_feed(job: Job) -> Feed:
    """A whole epoch of the configured data, cut as its mesh and batch size say.

    Raises:
        ConfigError: there is no row to train on.
    """
    feed = Feed(job.dataset.num_rows("train"), job.cfg.batch_size, job.mesh.replicas, parts=job.place.placement.num_replicas)
    if not feed.num_steps:
        raise ConfigError(f"{job.dataset.source} has no training rows")
    return feed


def read_epochs(job: Job) -> Iterator[Batch]:
    """One batch a step, epoch after epoch without end; collective where every rank feeds."""
    feed = whole_feed(job)
    return chain.from_iterable(read_batches(job, feed, epoch) for epoch in count())


def _consumers(job: Job) -> dict[int, int]:
    """Rank and number of each consumer of this rank's lane."""
    replicas = job.place.placement.num_replicas
    return {job.place.rank_of(k, 0): job.place.lane * replicas + k for k in range(replicas)}


def _ranges(job: Job, feed: Feed) -> Iterator[tuple[int, int]]:
    """This rank's part of the share of each consumer of its lane, step by step."""
    width, local = job.place.placement.num_ranks, job.place.local
    for step in range(feed.num_steps):
        for consumer in _consumers(job).values():
            start, stop = feed.share(step, consumer)
            yield tuple(start + (stop - start) * part // width for part in (local, local + 1))  # type: ignore[misc]


def _by_consumer(job: Job, feed: Feed, parts: Iterator[Batch]) -> Iterator[dict[int, Batch]]:
    for _ in range(feed.num_steps):
        yield {rank: next(parts) for rank in _consumers(job)}
