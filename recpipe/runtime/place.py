"""Where a rank stands in a program: its lane, its stages, and which rank is at the other end of everything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from recpipe.schedule.ir import Placement


@dataclass(frozen=True)
class Place:
    """A rank's view of a placement that is repeated in lanes (data-parallel copies).

    A *consumer* is stage 0 of one copy of the pipeline: consumer ``lane * replicas + replica`` reads its own rows.

    Args:
        placement: of one lane.
        lanes: copies of it; lane l has the ranks from ``l * placement.num_ranks`` on.
        rank: this rank, over all lanes.
    """

    placement: Placement
    lanes: int
    rank: int

    @property
    def lane(self) -> int:
        return self.rank // self.placement.num_ranks

    @property
    def local(self) -> int:
        """Number of this rank inside its lane."""
        return self.rank % self.placement.num_ranks

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """Stages that this rank runs, each once whatever the number of copies it runs them for."""
        return tuple(sorted({stage for _, stage in self.placement.slots[self.local]}))

    @property
    def num_consumers(self) -> int:
        return self.placement.num_replicas * self.lanes

    @cached_property
    def consumer(self) -> int | None:
        """Number of the consumer that this rank is; None where it reads no rows."""
        mine = [replica for replica, stage in self.placement.slots[self.local] if stage == 0]
        assert len(mine) <= 1, f"rank {self.rank} is stage 0 of pipelines {mine}; one is what the exchange serves"
        return self.lane * self.placement.num_replicas + mine[0] if mine else None

    def rank_of(self, replica: int, stage: int) -> int:
        """The rank, over all lanes, that runs `stage` of `replica` of this rank's lane."""
        return self.lane * self.placement.num_ranks + self.placement.ranks[replica][stage]

    def holders(self, stage: int) -> tuple[int, ...]:
        """All ranks that hold the weights of `stage`, ascending."""
        width = self.placement.num_ranks
        here = {row[stage] for row in self.placement.ranks}
        return tuple(sorted(lane * width + rank for lane in range(self.lanes) for rank in here))
