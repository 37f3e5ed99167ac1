"""Machines a plan is made for: nodes of ranks, what a rank can do, and the links between them. Plain numbers, no torch.

Times are seconds, sizes bytes, rates per second. Rates are *reached* rates: what a datasheet says times a stated efficiency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from recpipe.errors import ConfigError


@dataclass(frozen=True)
class Nodes:
    """Nodes that are alike.

    Args:
        count: nodes.
        ranks: ranks a node.
        memory: bytes of a rank's device (or of its part of the host, where ranks are CPUs).
        host_memory: bytes of host memory a rank, beside `memory`; 0 where the device is the host.
        flops: matrix product rate of the tower.
        bandwidth: of memory, for streams (element-wise work, dense gradients).
        gather: of memory, for single rows (lookup, update).
        launch: fixed time of one kernel.
        dedup: time a lookup, to find the unique ids of a step.
        price: of one rank-hour, in any currency; 0 if unknown.
        update: of memory, for the update of single rows; 0: `gather`.
        pool: of memory, for rows to bags and back; 0: `gather`.
    """

    count: int
    ranks: int
    memory: float
    flops: float
    bandwidth: float
    gather: float
    launch: float
    dedup: float
    host_memory: float = 0.0
    price: float = 0.0
    update: float = 0.0
    pool: float = 0.0


@dataclass(frozen=True)
class Tier:
    """Links of one rank: `bandwidth` each way; a collective starts `alpha` late and pays `peer` for each other rank."""

    alpha: float
    bandwidth: float
    peer: float = 0.0


@dataclass(frozen=True)
class Topology:
    """A cluster.

    Args:
        name: for reports.
        nodes: groups of equal nodes; ranks are numbered through them in order.
        near, far: links inside a node and between nodes.
        message: what messages between stages and reductions reach where that differs from an exchange; None: as it.
        host: ``sync`` (CPU, gloo: a rank issues work after the compute before it) or ``async`` (CUDA).
        reserved: share of memory that is left alone (context, fragmentation, communication buffers).
        measured: whether the numbers were measured on the machine itself.
    """

    name: str
    nodes: tuple[Nodes, ...]
    near: Tier
    far: Tier
    host: str = "async"
    reserved: float = 0.15
    measured: bool = False
    message: Tier | None = None

    def __post_init__(self) -> None:
        for group in self.nodes:
            for one in fields(group):
                least = 0 if one.name in ("host_memory", "price", "launch", "dedup", "update", "pool") else 1e-30
                if not getattr(group, one.name) >= least:
                    raise ConfigError(f"topology {self.name}: {one.name}={getattr(group, one.name)} must be positive")
        if not self.nodes:
            raise ConfigError(f"topology {self.name} has no nodes")
        if not 0 <= self.reserved < 1:
            raise ConfigError(f"topology {self.name}: reserved={self.reserved}, a share lies in [0, 1)")
        if min(self.near.bandwidth, self.far.bandwidth) <= 0 or min(self.near.alpha, self.far.alpha) < 0:
            raise ConfigError(f"topology {self.name}: links need a bandwidth above 0 and an alpha of at least 0")
        if self.host not in ("sync", "async"):
            raise ConfigError(f"topology {self.name}: host={self.host}; write sync (CPU) or async (CUDA)")

    @cached_property
    def world(self) -> int:
        """Ranks."""
        return sum(group.count * group.ranks for group in self.nodes)

    @cached_property
    def num_nodes(self) -> int:
        return sum(group.count for group in self.nodes)

    @cached_property
    def rank_groups(self) -> tuple[Nodes, ...]:
        """The group of each rank."""
        return tuple(group for group in self.nodes for _ in range(group.count * group.ranks))

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each rank."""
        sizes = [group.ranks for group in self.nodes for _ in range(group.count)]
        return tuple(node for node, size in enumerate(sizes) for _ in range(size))

    @property
    def local_size(self) -> int:
        """Ranks a node where all nodes have as many, else 1: sharding types by node need equal nodes."""
        sizes = {group.ranks for group in self.nodes}
        return sizes.pop() if len(sizes) == 1 else 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks of the smallest node: neighbours in a pipeline share a node up to this."""
        return min(group.ranks for group in self.nodes)

    @property
    def price_per_hour(self) -> float:
        """Of all ranks together."""
        return sum(group.count * group.ranks * group.price for group in self.nodes)

    def collective(self, num_ranks: int) -> float:
        """Fixed time of an all-to-all over `num_ranks` ranks."""
        tier = self.near if num_ranks <= self.ranks_per_node else self.far
        return tier.alpha + tier.peer * (num_ranks - 1)


@dataclass
class NodesSettings:
    """One entry of ``topology.nodes``; units as engineers write them. See `Nodes`."""

    count: int = 1
    ranks: int = 1
    memory_gb: float = 80.0
    host_memory_gb: float = 0.0
    tflops: float = 100.0
    bandwidth_gbs: float = 2000.0
    gather_gbs: float = 1000.0
    launch_us: float = 5.0
    dedup_ns: float = 1.0
    price: float = 0.0


@dataclass
class TierSettings:
    """One tier of links; see `Tier`."""

    alpha_us: float = 10.0
    bandwidth_gbs: float = 25.0
    peer_us: float = 0.0


@dataclass
class TopologySettings:
    """Group `topology`."""

    name: str = ""
    nodes: list[NodesSettings] = field(default_factory=list)
    near: TierSettings = field(default_factory=TierSettings)
    far: TierSettings = field(default_factory=TierSettings)
    host: str = "async"
    reserved: float = 0.15
    measured: bool = False


def to_topology(settings: Any) -> Topology:
    """From the settings of the group `topology` (1 GB is 1e9 bytes). Raises ConfigError for numbers that no machine has."""
    _check_finite(settings)
    groups = tuple(
        Nodes(
            count=one.count,
            ranks=one.ranks,
            memory=one.memory_gb * 1e9,
            host_memory=one.host_memory_gb * 1e9,
            flops=one.tflops * 1e12,
            bandwidth=one.bandwidth_gbs * 1e9,
            gather=one.gather_gbs * 1e9,
            launch=one.launch_us * 1e-6,
            dedup=one.dedup_ns * 1e-9,
            price=one.price,
        )
        for one in settings.nodes
    )
    tiers = [
        Tier(one.alpha_us * 1e-6, one.bandwidth_gbs * 1e9, one.peer_us * 1e-6) for one in (settings.near, settings.far)
    ]
    return Topology(settings.name, groups, tiers[0], tiers[1], settings.host, settings.reserved, settings.measured)


def _check_finite(settings: Any) -> None:
    links = [("near", settings.near, TierSettings), ("far", settings.far, TierSettings)]
    nodes = [(f"nodes[{index}]", one, NodesSettings) for index, one in enumerate(settings.nodes)]
    for place, one, record in (*links, *nodes):
        for key in fields(record):
            value = getattr(one, key.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"topology.{place}.{key.name}={value}: must be a finite number that is not negative")
