"""Flags that ranks agree on once a step, one step late, so that nobody waits for the agreement."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from recpipe.comm import Groups


class Agreement:
    """Raises a flag on all ranks when it is up on any.

    Args:
        groups: all ranks call the same methods at the same places.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._flags: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def exchange(self, mine: Sequence[bool]) -> list[bool]:
        """Tells this rank's flags; gives those that any rank told in the call before (alone: in this one)."""
        if self._groups.world == 1:
            return list(mine)
        agreed = self.close()
        self._flags = torch.tensor(mine, dtype=torch.uint8)
        self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._groups.control, async_op=True)
        return agreed or [False] * len(mine)

    def close(self) -> list[bool]:
        """Waits for what is under way."""
        if self._work is None or self._flags is None:
            return []
        self._work.wait()
        self._work = None
        return [bool(flag) for flag in self._flags]
