"""Which rows a rank trains on: pure arithmetic on global row positions, so that every rank knows every rank's share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feed:
    """Cuts an epoch in steps and a step in the shares of replicas.

    Args:
        num_rows: rows of the epoch.
        batch_size: rows of a replica in a full step.
        replicas: number of replicas.
        drop_last: leave out a last step that is not full.
        limit: at most this many steps; None for all.
    """

    num_rows: int
    batch_size: int
    replicas: int
    drop_last: bool = False
    limit: int | None = None

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.replicas

    @property
    def num_steps(self) -> int:
        full, rest = divmod(self.num_rows, self.global_batch)
        steps = full if self.drop_last or not rest else full + 1
        return steps if self.limit is None else min(steps, self.limit)

    @property
    def num_used_rows(self) -> int:
        """Rows that the steps cover."""
        return min(self.num_steps * self.global_batch, self.num_rows)

    def share(self, step: int, replica: int) -> tuple[int, int]:
        """Global rows [start, stop) of a replica in a step. A short last step is dealt out evenly; a share may be empty."""
        first = step * self.global_batch
        rows = min(self.global_batch, self.num_rows - first)
        return first + rows * replica // self.replicas, first + rows * (replica + 1) // self.replicas

    def shares(self, replica: int, start_step: int = 0) -> list[tuple[int, int]]:
        """The shares of a replica from `start_step` on."""
        return [self.share(step, replica) for step in range(start_step, self.num_steps)]
