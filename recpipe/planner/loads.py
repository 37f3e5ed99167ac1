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
    def peers(self) -> np.ndarray:
        """Consumers on the node of each rank."""
        return np.bincount(self.node, self.is_consumer)[self.node]

    @cached_property
    def gather_rate(self) -> np.ndarray:
        return np.array([group.gather for group in self.topology.rank_groups])

    @cached_property
    def dedup_time(self) -> float:
        """Seconds a lookup at the slowest consumer."""
        return max(self.topology.rank_groups[rank].dedup for rank in self.consumers)

    def exchange_seconds(self, own: np.ndarray) -> float:
        """An all-to-all in which rank r sends ``own[r]`` bytes to every consumer: its busiest link, either way."""
        return float(self.exchange_by_rank(own).max(initial=0.0))

    def exchange_by_rank(self, own: np.ndarray) -> np.ndarray:
        """Seconds of the busiest link of each rank."""
        near, far = self.topology.near.bandwidth, self.topology.far.bandwidth
        by_node = np.bincount(self.node, own)[self.node]
        sent_near = own * (self.peers - self.is_consumer) / near
        sent_far = own * (len(self.consumers) - self.peers) / far
        got_near = self.is_consumer * (by_node - own) / near
        got_far = self.is_consumer * (own.sum() - by_node) / far
        return np.maximum(np.maximum(sent_near, sent_far), np.maximum(got_near, got_far))

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


@dataclass
class Loads:
    """What the tables placed so far ask of each rank (arrays), and of every consumer (numbers)."""

    cluster: Cluster
    own: np.ndarray
    own_pooled: np.ndarray
    ids: np.ndarray
    gather: np.ndarray
    update: np.ndarray
    memory: np.ndarray
    dedup: float = 0.0
    pool: float = 0.0
    unpool: float = 0.0
    reduce: float = 0.0
    consumer_memory: float = 0.0
    num_pooled: int = 0

    @classmethod
    def empty(cls, cluster: Cluster) -> Loads:
        own, own_pooled, ids, gather, update, memory = np.zeros((6, cluster.topology.world))
        return cls(cluster, own, own_pooled, ids, gather, update, memory)

    def copy(self) -> Loads:
        """Independent arrays."""
        names = ("own", "own_pooled", "ids", "gather", "update", "memory")
        values = {**self.__dict__, **{name: getattr(self, name).copy() for name in names}}
        return Loads(**values)

    def add(self, kind: Kind, ranks: Sequence[int], sign: float = 1.0) -> None:
        """Place `kind` on `ranks`, or take it away with ``sign=-1``."""
        if kind.replicated:
            self._add_replicated(kind, sign)
        else:
            at = np.asarray(ranks)
            target = self.own_pooled if kind.exchange == "pooled" else self.own
            for array, values in (
                (target, kind.own),
                (self.ids, kind.ids),
                (self.gather, kind.gather),
                (self.update, kind.update),
                (self.memory, kind.held + kind.state + kind.moving),
            ):
                np.add.at(array, at, sign * values)
        self.num_pooled += int(sign) * (kind.exchange == "pooled")
        self.dedup += sign * kind.dedup
        self.pool += sign * kind.pool
        self.unpool += sign * kind.unpool
        self.consumer_memory += sign * kind.consumer_held

    def _add_replicated(self, kind: Kind, sign: float) -> None:
        self.gather += sign * kind.gather[0] * self.cluster.is_consumer
        self.update += sign * kind.update[0]
        self.memory += sign * (kind.held[0] + kind.state[0] + kind.moving[0])
        self.reduce += sign * self.cluster.all_reduce_seconds(kind.reduced)

    def times(self) -> TableTimes:
        """Milliseconds of the rank that takes longest."""
        cluster = self.cluster
        lookup, update = self.lookup_by_rank(), self.update_by_rank()
        pooled = cluster.exchange_seconds(self.own_pooled) + cluster.alpha if self.num_pooled else 0.0
        route = 2 * cluster.alpha + self.dedup * cluster.dedup_time + cluster.exchange_seconds(self.ids)
        return TableTimes(
            route * 1e3,
            float(lookup.max() + pooled) * 1e3,
            cluster.exchange_seconds(self.own) * 1e3,
            float(update.max() + pooled + self.reduce) * 1e3,
        )

    def lookup_by_rank(self) -> np.ndarray:
        """Seconds of gathering and pooling."""
        return (self.gather + self.pool * self.cluster.is_consumer) / self.cluster.gather_rate

    def update_by_rank(self) -> np.ndarray:
        """Seconds of unpooling and updating."""
        return (self.update + self.unpool * self.cluster.is_consumer) / self.cluster.gather_rate

    def used(self) -> np.ndarray:
        """Bytes on each rank."""
        return self.memory + self.consumer_memory * self.cluster.is_consumer

    def shortfall(self) -> float:
        """Bytes missing on the fullest rank; 0 when everything fits."""
        return max(0.0, float((self.used() - self.cluster.free).max()))


def add_all(cluster: Cluster, chosen: Sequence[Chosen]) -> Loads:
    """Loads of a whole assignment."""
    loads = Loads.empty(cluster)
    for kind, ranks in chosen:
        loads.add(kind, ranks)
    return loads
