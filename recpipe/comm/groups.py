"""Process groups, made once and in one order on every rank.

Each lane of communication has a group of its own, so that the order of collectives inside one lane does not
constrain another: row gradients may be in flight while dense buckets are reduced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from recpipe.comm.connecting import new_group

ProcessGroup = dist.ProcessGroup


@dataclass(frozen=True)
class Groups:
    """One group a lane, all over every rank; a world of one needs none but `control`.

    Args:
        rank, world: this process and the number of processes.
        ids: announcements and id routing.
        rows: rows from owners to consumers.
        gradients: row gradients back to owners.
        dense: reduction of dense gradients.
        feed: rows of data that one rank reads for another.
        control: rare small messages (metrics, checkpoints, agreement).
    """

    rank: int
    world: int
    ids: ProcessGroup | None = None
    rows: ProcessGroup | None = None
    gradients: ProcessGroup | None = None
    dense: ProcessGroup | None = None
    feed: ProcessGroup | None = None
    control: ProcessGroup | None = None

    @staticmethod
    def create() -> Groups:
        """Groups over the initialised default group; collective. A world of one has the control group only."""
        if dist.get_world_size() == 1:
            return Groups(rank=0, world=1, control=dist.group.WORLD)
        lanes = {lane: new_group() for lane in ("ids", "rows", "gradients", "dense", "feed", "control")}
        return Groups(rank=dist.get_rank(), world=dist.get_world_size(), **lanes)

    def of_copies(self, holders: Sequence[Sequence[int]], of_its_own: bool = False) -> list[ProcessGroup | None]:
        """A group for each stage over the ranks that hold it; collective.

        Args:
            holders: ranks of each stage, the same list on every rank.
            of_its_own: not the group `dense`, which several stages held by all ranks share.

        Returns:
            By stage: None where one rank holds it or this rank does not.
        """
        everyone = list(range(self.world))
        found = []
        for ranks in holders:
            group = None
            if len(ranks) > 1:
                group = self.dense if list(ranks) == everyone and not of_its_own else new_group(list(ranks))
            found.append(group if self.rank in ranks else None)
        return found

    def gather_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenates 1-D tensors of unequal length from all ranks, in rank order, on every rank."""
        if self.world == 1:
            return tensor
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([tensor.numel()]), group=self.control)
        lengths = [int(size) for size in sizes]
        padded = torch.zeros(max(lengths), dtype=tensor.dtype)
        padded[: tensor.numel()] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded, group=self.control)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def gather_objects(self, mine: Any) -> list[Any]:
        """What each rank gives, in rank order, on every rank. Pickled: for timelines, between ranks that trust each other."""
        if self.world == 1:
            return [mine]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, mine, group=self.control)
        return everyone

    def gather_texts(self, mine: Sequence[str]) -> list[list[str]]:
        """The texts of each rank, in rank order, on every rank. For reports, not for a step."""
        if self.world == 1:
            return [list(mine)]
        coded = _coded(list(mine))
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([coded.numel()]), group=self.control)
        room = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        room[: coded.numel()] = coded
        parts = [torch.empty_like(room) for _ in range(self.world)]
        dist.all_gather(parts, room, group=self.control)
        return [_decoded(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]

    def sum_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, group=self.control)
        return tensor

    def broadcast_text(self, text: str) -> str:
        """Rank 0's text, on every rank. For setup, not for a step."""
        if self.world == 1:
            return text
        coded = _coded(text)
        size = torch.tensor([coded.numel()])
        dist.broadcast(size, src=0, group=self.control)
        if self.rank:
            coded = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(coded, src=0, group=self.control)
        return str(_decoded(coded))

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.control)


def _coded(value: str | list[str]) -> torch.Tensor:
    """Bytes of JSON: never none, and never a pickle."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decoded(coded: torch.Tensor) -> Any:
    return json.loads(coded.numpy().tobytes())
