"""Messages between two ranks: one process group a kind and direction, so that no stream of messages waits for another.

Messages of one channel arrive in the order in which they were sent; tags are not used (NCCL has none). Sizes are agreed
beforehand by both ends: gloo does not notice a short message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from recpipe.comm.connecting import new_group
from recpipe.comm.lane import Pending
from recpipe.comm.traffic import Traffic

KINDS = ("activation", "gradient")


class ChannelsLike(Protocol):
    """What a runtime needs of a point-to-point layer."""

    def send(self, kind: str, target: int, tensor: torch.Tensor) -> Pending: ...

    def receive(self, kind: str, source: int, out: torch.Tensor) -> Pending: ...


@dataclass(frozen=True)
class Channels:
    """Sends and receives of this rank.

    Args:
        rank: this rank.
        groups: by (kind, direction); direction is whether the target has the larger number.
        traffic: counts what leaves.
    """

    rank: int
    groups: dict[tuple[str, bool], dist.ProcessGroup]
    traffic: Traffic

    @staticmethod
    def create(rank: int, traffic: Traffic) -> Channels:
        """Makes the groups; collective."""
        groups = {(kind, up): new_group() for kind in KINDS for up in (True, False)}
        return Channels(rank, groups, traffic)

    def send(self, kind: str, target: int, tensor: torch.Tensor) -> Pending:
        """Starts a contiguous tensor on its way."""
        group = self.groups[kind, target > self.rank]
        work = dist.isend(tensor, target, group=group)
        assert work is not None  # torch gives none to ranks outside the group
        return Pending(tensor, self.traffic.track(kind, work, tensor.numel() * tensor.element_size()), tensor)

    def receive(self, kind: str, source: int, out: torch.Tensor) -> Pending:
        """Starts to receive into `out`, contiguous and of the size that was sent."""
        group = self.groups[kind, self.rank > source]
        work = dist.irecv(out, source, group=group)
        assert work is not None
        return Pending(out, self.traffic.track(kind, work), out)
