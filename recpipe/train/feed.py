"""Which rows a rank trains on: pure arithmetic on global row positions, so that every rank knows every rank's share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feed:
    """Cuts an epoch in steps and a step in the shares of consumers.

    Args:
        num_rows: rows of the epoch.
        batch_size: rows of a replica in a full step.
        replicas: number of replicas.
        drop_last: leave out a last step that is not full.
        limit: at most this many steps from the beginning of the epoch; None for all.
        start_row: where the rest of an epoch begins, after a resume.
        rows_per_step: global rows of a full step where they are not ``batch_size * replicas``: a run that goes on with
            another number of replicas keeps its global batch.
        parts: consumers of a replica, which deal its rows out among them: two in a bidirectional schedule.
    """

    num_rows: int
    batch_size: int
    replicas: int
    drop_last: bool = False
    limit: int | None = None
    start_row: int = 0
    rows_per_step: int | None = None
    parts: int = 1

    @property
    def global_batch(self) -> int:
        return self.rows_per_step or self.batch_size * self.replicas

    @property
    def stop_row(self) -> int:
        """The first row that is no longer used."""
        stop = self.num_rows if self.limit is None else min(self.num_rows, self.limit * self.global_batch)
        if self.drop_last:
            stop -= (stop - self.start_row) % self.global_batch
        return max(stop, self.start_row)

    @property
    def num_steps(self) -> int:
        return -(-self.num_used_rows // self.global_batch)

    @property
    def num_used_rows(self) -> int:
        """Rows that the steps cover."""
        return self.stop_row - self.start_row

    def share(self, step: int, consumer: int | None) -> tuple[int, int]:
        """Global rows [start, stop) of a consumer in a step, counted from `start_row`; none for a rank that is none (None).

        A short last step is dealt out evenly; a share may be empty.
        """
        first = self.start_row + step * self.global_batch
        if consumer is None:
            return first, first
        rows, shares = min(self.global_batch, self.stop_row - first), self.replicas * self.parts
        return first + rows * consumer // shares, first + rows * (consumer + 1) // shares

    def shares(self, consumer: int | None) -> list[tuple[int, int]]:
        """The shares of a consumer in all steps."""
        return [self.share(step, consumer) for step in range(self.num_steps)]
