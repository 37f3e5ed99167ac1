"""Loads of ranks: table kinds placed on ranks, added up, and turned into the four times that a step depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recpipe.planner.step_time import TableTimes
from recpipe.planner.table_costs import Kind
from recpipe.planner.topology import Topology

Chosen = tuple[Kind, tuple[int, ...]]
"""A kind and the rank of each of its shards; no ranks for a replicated table."""


@dataclass(frozen=True)
class Cluster:
    """A topology seen from its tables.

    Args:
        topology: the machines.
        consumers: ranks that read data, ascending.
        free: bytes of each rank that are left for tables and what they move.
    """

    topology: Topology
    consumers: tuple[int, ...]
    free: np.ndarray

    @cached_property
    def node(self) -> np.ndarray:
        return np.array(self.topology.node_of)

    @cached_property
    def is_consumer(self) -> np.ndarray:
        flags = np.zeros(self.topology.world)
        flags[list(self.consumers)] = 1.0
        return flags

    @cached_property
    def gather_rate(self) -> np.ndarray:
        return np.array([group.gather for group in self.topology.rank_groups])

    @cached_property
    def update_rate(self) -> np.ndarray:
        return np.array([group.update or group.gather for group in self.topology.rank_groups])

    @cached_property
    def pool_rate(self) -> np.ndarray:
        return np.array([group.pool or group.gather for group in self.topology.rank_groups])

    @cached_property
    def dedup_time(self) -> float:
        """Seconds a lookup at the slowest consumer."""
        return max(self.topology.rank_groups[rank].dedup for rank in self.consumers)

    @cached_property
    def _send(self) -> np.ndarray:
        """Seconds of the busier of its links for a byte that a rank sends to each consumer."""
        peers = np.bincount(self.node, self.is_consumer)[self.node]
        near = (peers - self.is_consumer) / self.topology.near.bandwidth
        return np.maximum(near, (len(self.consumers) - peers) / self.topology.far.bandwidth)

    @cached_property
    def _node_starts(self) -> np.ndarray:
        return np.searchsorted(self.node, np.arange(self.topology.num_nodes))

    def exchange_by_rank(self, own: np.ndarray) -> np.ndarray:
        """Seconds of the busiest link of each rank in an all-to-all where rank r sends ``own[r]`` bytes to every consumer.

        Args:
            own: ranks, or exchanges x ranks.
        """
        if self.topology.num_nodes == 1:
            got = (own.sum(axis=-1, keepdims=True) - own) / self.topology.near.bandwidth
        else:
            by_node = np.add.reduceat(own, self._node_starts, axis=-1)
            far = (by_node.sum(axis=-1, keepdims=True) - by_node)[..., self.node] / self.topology.far.bandwidth
            got = np.maximum((by_node[..., self.node] - own) / self.topology.near.bandwidth, far)
        return np.maximum(own * self._send, got * self.is_consumer)

    @cached_property
    def alpha(self) -> float:
        """Fixed seconds of one exchange over all ranks."""
        return self.topology.collective(self.topology.world) if self.topology.world > 1 else 0.0

    def all_reduce_seconds(self, num_bytes: float) -> float:
        """A ring over all ranks."""
        world = self.topology.world
        if world == 1 or not num_bytes:
            return 0.0
        tier = self.topology.near if self.topology.num_nodes == 1 else self.topology.far
        return 2 * (world - 1) / world * num_bytes / tier.bandwidth + self.alpha


class Loads:
    """What the tables placed so far ask of each rank (`data`), and of every consumer (numbers).

    Args:
        cluster: the machines.
        data: rows by window, rows pooled, ids, gather, update, memory: 6 x ranks, as `Kind.packed`.
    """

    def __init__(self, cluster: Cluster, data: np.ndarray | None = None) -> None:
        self.cluster = cluster
        self.data = np.zeros((6, cluster.topology.world)) if data is None else data
        self.dedup = self.pool = self.unpool = self.reduce = self.consumer_memory = 0.0
        self.num_pooled = 0

    def copy(self) -> Loads:
        """Independent of this one."""
        other = Loads(self.cluster, self.data.copy())
        for name in ("dedup", "pool", "unpool", "reduce", "consumer_memory", "num_pooled"):
            setattr(other, name, getattr(self, name))
        return other

    @property
    def own(self) -> np.ndarray:
        """Bytes of rows that each rank sends to every consumer, of both exchanges."""
        return self.data[0] + self.data[1]

    @property
    def ids(self) -> np.ndarray:
        return self.data[2]

    def add(self, kind: Kind, ranks: Sequence[int], sign: int = 1) -> None:
        """Place `kind` on `ranks` (all different), or take it away with ``sign=-1``."""
        if kind.replicated:
            gather, update, memory = kind.packed[3:, 0]
            self.data[3] += sign * gather * self.cluster.is_consumer
            self.data[4] += sign * update
            self.data[5] += sign * memory
            self.reduce += sign * self.cluster.all_reduce_seconds(kind.reduced)
        elif len(ranks) == 1:
            self.data[:, ranks[0]] += sign * kind.packed[:, 0]
        else:
            self.data[:, list(ranks)] += sign * kind.packed
        self.num_pooled += sign * (kind.exchange == "pooled")
        self.dedup += sign * kind.dedup
        self.pool += sign * kind.pool
        self.unpool += sign * kind.unpool
        self.consumer_memory += sign * kind.consumer_held

    def phases(self) -> np.ndarray:
        """Seconds of each rank: exchange by window, pooled exchange, ids, lookup, update: 5 x ranks."""
        exchange = self.cluster.exchange_by_rank(self.data[:3])
        return np.concatenate([exchange, [self.lookup_by_rank(), self.update_by_rank()]])

    def times(self) -> TableTimes:
        """Milliseconds of the rank that takes longest."""
        return self.joined(self.phases().max(axis=1))

    def joined(self, phases: np.ndarray) -> TableTimes:
        """The four times, milliseconds, from one number for each of `phases`."""
        rows, pooled, ids, lookup, update = phases.tolist()
        alpha = self.cluster.alpha
        sent = pooled + alpha if self.num_pooled else 0.0
        # On a synchronous host routing is work of its own; the latency is in the costs of the program.
        late = 0.0 if self.cluster.topology.host == "sync" else 2 * alpha
        route = late + self.dedup * self.cluster.dedup_time + ids
        return TableTimes(route * 1e3, (lookup + sent) * 1e3, rows * 1e3, (update + sent + self.reduce) * 1e3)

    def lookup_by_rank(self) -> np.ndarray:
        """Seconds of gathering and pooling."""
        cluster = self.cluster
        return self.data[3] / cluster.gather_rate + self.pool * cluster.is_consumer / cluster.pool_rate

    def update_by_rank(self) -> np.ndarray:
        """Seconds of unpooling and updating."""
        cluster = self.cluster
        return self.data[4] / cluster.update_rate + self.unpool * cluster.is_consumer / cluster.pool_rate

    def used(self) -> np.ndarray:
        """Bytes on each rank."""
        return self.data[5] + self.consumer_memory * self.cluster.is_consumer

    def shortfall(self) -> float:
        """Bytes missing on the fullest rank; 0 when everything fits."""
        return max(0.0, float((self.used() - self.cluster.free).max()))


def add_all(cluster: Cluster, chosen: Sequence[Chosen]) -> Loads:
    """Loads of a whole assignment."""
    loads = Loads(cluster)
    for kind, ranks in chosen:
        loads.add(kind, ranks)
    return loads
