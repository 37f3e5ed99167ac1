"""Batches ahead of training: threads build the next ones while the current one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from recpipe.batch import Batch
from recpipe.data.dataset import Dataset

AHEAD = 3


class Loader:
    """Batches of the given row ranges, in the order given, whatever the number of workers.

    Args:
        dataset: where the rows come from.
        split, epoch: which rows, in which order.
        ranges: global row ranges (start, stop); read lazily, so an endless iterable is fine.
        num_workers: threads; 0 builds each batch when it is asked for.
    """

    def __init__(
        self, dataset: Dataset, split: str, epoch: int, ranges: Iterable[tuple[int, int]], num_workers: int = 1
    ) -> None:
        self._dataset, self._split, self._epoch = dataset, split, epoch
        self._ranges, self._num_workers = ranges, num_workers

    def __iter__(self) -> Iterator[Batch]:
        if self._num_workers == 0:
            return (self._build(start, stop) for start, stop in self._ranges)
        return self._ahead()

    def _build(self, start: int, stop: int) -> Batch:
        return self._dataset.batch(self._split, self._epoch, start, stop)

    def _ahead(self) -> Iterator[Batch]:
        """Keep a bounded number of batches under way; an error surfaces at the batch it belongs to."""
        waiting: deque[Future[Batch]] = deque()
        pool = ThreadPoolExecutor(self._num_workers, thread_name_prefix="recpipe-loader")
        try:
            for start, stop in self._ranges:
                waiting.append(pool.submit(self._build, start, stop))
                if len(waiting) >= AHEAD * self._num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
