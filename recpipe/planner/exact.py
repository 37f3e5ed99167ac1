"""The best assignment of few tables to few ranks: branch and bound over kinds and ranks.

Loads only grow as tables are added, and a step never gets shorter when a load grows, so a partial assignment that is
already too slow or too large is given up with all that would follow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recpipe.planner.assign import Assigner, Assignment, Stop, Table
from recpipe.planner.loads import Chosen, Cluster, Loads
from recpipe.planner.problem import Problem
from recpipe.planner.step_time import TableTimes
from recpipe.planner.table_costs import Kind

_MOST_PLACES = 64
_MOST_TABLES, _MOST_RANKS = 12, 16
_SLACK = 1e-9


def places_of(kind: Kind, world: int, local: int) -> list[tuple[int, ...]]:
    """Every rank list of a kind, or none when they are too many to try."""
    ranks = range(world)
    if kind.replicated:
        return [()]
    if kind.sharding == "row_wise":
        return [tuple(ranks)]
    if kind.sharding == "table_wise":
        return [(rank,) for rank in ranks]
    nodes = [tuple(range(start, start + local)) for start in range(0, world, local)]
    if kind.sharding == "table_row_wise":
        return nodes
    if kind.sharding == "grid":
        groups = _combinations(tuple(range(len(nodes))), kind.col_blocks)
        return [tuple(nodes[n][i] for i in range(local) for n in group) for group in groups]
    if kind.sharding == "table_column_wise":
        return [group for node in nodes for group in _combinations(node, kind.col_blocks)]
    return _combinations(tuple(ranks), kind.col_blocks)


def _combinations(items: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(items, count)) if math.comb(len(items), count) <= _MOST_PLACES else []


@dataclass(frozen=True)
class Rest:
    """Least that a set of tables costs, whatever is chosen for each.

    Args:
        gather, update: bytes of traffic over all ranks.
        dedup, pool, unpool: at every consumer.
    """

    gather: float = 0.0
    update: float = 0.0
    dedup: float = 0.0
    pool: float = 0.0
    unpool: float = 0.0

    @classmethod
    def of(cls, tables: Sequence[Table], cluster: Cluster) -> Rest:
        """Of whole tables."""
        rest = cls()
        for table in tables:
            rest = rest.plus(table, cluster)
        return rest

    def plus(self, table: Table, cluster: Cluster) -> Rest:
        """With one more table."""
        world, consumers = cluster.topology.world, len(cluster.consumers)
        return Rest(
            self.gather + min(float(k.gather.sum()) * (consumers if k.replicated else 1) for k in table.kinds),
            self.update + min(float(k.update.sum()) * (world if k.replicated else 1) for k in table.kinds),
            self.dedup + min(kind.dedup for kind in table.kinds),
            self.pool + min(kind.pool for kind in table.kinds),
            self.unpool + min(kind.unpool for kind in table.kinds),
        )

    def times(self, loads: Loads) -> TableTimes:
        """Times that no placing of the rest on top of `loads` undercuts."""
        cluster = loads.cluster
        consumers = len(cluster.consumers)
        before = (loads.dedup, loads.pool, loads.unpool)
        loads.dedup, loads.pool, loads.unpool = (
            a + b for a, b in zip(before, (self.dedup, self.pool, self.unpool), strict=True)
        )
        times = loads.times()
        gathered, updated = float(loads.data[3].sum()) + self.gather, float(loads.data[4].sum()) + self.update
        lookup = _even(gathered, consumers * loads.pool, cluster.gather_rate, cluster.pool_rate)
        update = _even(updated, consumers * loads.unpool, cluster.update_rate, cluster.pool_rate)
        loads.dedup, loads.pool, loads.unpool = before
        return TableTimes(times.route, max(times.lookup, lookup), times.exchange, max(times.update, update))


def _even(own: float, pooled: float, rate: np.ndarray, pool_rate: np.ndarray) -> float:
    """Milliseconds that bytes of owners and bytes of consumers take at least, spread over all ranks as suits them."""
    return (own + pooled * float((rate / pool_rate).min())) / float(rate.sum()) * 1e3


def options_of(table: Table, world: int, local: int) -> list[Chosen]:
    """Every place of a table, or none where they are too many to try."""
    found: list[Chosen] = []
    for kind in table.kinds:
        free = not table.pinned or kind.replicated
        places = places_of(kind, world, local) if free else [table.pinned]
        if not places:
            return []
        found += [(kind, ranks) for ranks in places]
    return found


def num_assignments(tables: Sequence[Table], problem: Problem) -> float:
    """Whole assignments there are; infinite where they are hopelessly many."""
    if len(tables) > _MOST_TABLES or problem.topology.world > _MOST_RANKS:
        return math.inf
    counts = [len(options_of(table, problem.topology.world, problem.topology.local_size)) for table in tables]
    return math.prod(float(count) for count in counts) if all(counts) else math.inf


class Exact:
    """One search.

    Args:
        assigner: tables, ranks and step.
        nodes: most partial assignments that are looked at.
    """

    def __init__(self, assigner: Assigner, nodes: int, stop: Stop) -> None:
        self.assigner, self.left, self.stop = assigner, nodes, stop
        self.cluster, self.model = assigner.cluster, assigner.model
        self.order = sorted(range(len(assigner.tables)), key=lambda i: (-assigner.size(i), i))
        self.options = [options_of(assigner.tables[i], assigner.world, assigner.local_size) for i in self.order]
        self.rest = self._rests()
        self.alike_from = self._alike_from()
        self.best: Assignment | None = None
        self.limit = math.inf
        self.complete = all(self.options)

    def run(self, limit: float) -> tuple[Assignment | None, bool]:
        """The best assignment that fits and beats `limit` milliseconds, if any; and whether that is proven."""
        self.limit = limit
        self._branch(0, Loads(self.cluster), [])
        return self.best, self.complete

    def _alike_from(self) -> int:
        """The first place in the order behind which no table tells ranks apart."""
        for depth in reversed(range(len(self.order))):
            pinned = self.assigner.tables[self.order[depth]].pinned
            if pinned or any(kind.num_shards > 1 for kind, _ in self.options[depth]):
                return depth
        return 0

    def _rests(self) -> list[Rest]:
        rests = [Rest()]
        for index in reversed(self.order):
            rests.insert(0, rests[0].plus(self.assigner.tables[index], self.cluster))
        return rests

    def _branch(self, depth: int, loads: Loads, path: list[Chosen]) -> None:
        if depth == len(self.order):
            self._leaf(loads, path)
            return
        tried: set[tuple[object, ...]] = set()
        for option in self._promising(depth, loads):
            if self.left <= 0 or self.stop():
                self.complete = False
                return
            self.left -= 1
            mark = self._mark(depth, loads, option)
            if mark in tried:
                continue
            tried.add(mark)
            deeper = loads.copy()
            deeper.add(*option)
            if self._may_win(depth + 1, deeper):
                self._branch(depth + 1, deeper, [*path, option])

    def _promising(self, depth: int, loads: Loads) -> Iterator[Chosen]:
        """Options with the least loaded ranks first."""
        busy = loads.data[3] + loads.data[4]
        return iter(sorted(self.options[depth], key=lambda one: float(busy[list(one[1])].max()) if one[1] else 0.0))

    def _mark(self, depth: int, loads: Loads, option: Chosen) -> tuple[object, ...]:
        """A whole table is worth trying on one of several ranks that look the same.

        Only where every later table is whole or everywhere, too: row blocks differ, and so do pinned ranks.
        """
        kind, ranks = option
        if kind.num_shards > 1 or kind.replicated or depth < self.alike_from:
            return (id(kind), ranks)
        return (id(kind), *self._look(loads, ranks[0]))

    def _look(self, loads: Loads, rank: int) -> tuple[object, ...]:
        node = self.cluster.node
        mine = np.flatnonzero(node == node[rank])
        around = sorted(self._signature(loads, int(one)) for one in mine)
        return (self._signature(loads, rank), tuple(around))

    def _signature(self, loads: Loads, rank: int) -> tuple[float, ...]:
        fixed = (self.cluster.free[rank], self.cluster.is_consumer[rank], self.cluster.gather_rate[rank])
        return (*loads.data[:, rank].tolist(), *map(float, fixed))

    def _may_win(self, depth: int, loads: Loads) -> bool:
        if loads.shortfall() > 0:
            return False
        return self.model.bound(self.rest[depth].times(loads)) < self.limit * (1 - _SLACK)

    def _leaf(self, loads: Loads, path: list[Chosen]) -> None:
        times = loads.times()
        step = self.model.step(times)
        if step < self.limit * (1 - _SLACK):
            back = dict(zip(self.order, path, strict=True))
            chosen = tuple(back[i] for i in range(len(path)))
            self.best, self.limit = Assignment(chosen, times, step, loads.shortfall()), step
