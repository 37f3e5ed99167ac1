"""Tables on ranks for one design: a greedy start, local search from the best starts, and an exact search where it is small.

All three look at a step through `StepModel`: a slower step is never taken for a faster one, whatever the guide was.
Nothing here reads a clock or a random number, so a plan depends on its inputs alone; effort is counted in assignments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recpipe.planner.loads import Chosen, Cluster, Loads, add_all
from recpipe.planner.step_time import StepModel, TableTimes
from recpipe.planner.table_costs import Kind

_SLACK = 1e-9
_POWER = 16
_ALIKE = TableTimes(1.0, 1.0, 1.0, 1.0)
_MANY_RANKS = 24
"""Above this local search looks at the least loaded ranks only."""
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Table:
    """One table of the assignment.

    Args:
        kinds: ways of keeping it.
        pinned: its ranks; empty for free choice.
    """

    kinds: tuple[Kind, ...]
    pinned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """Tables on ranks.

    Args:
        chosen: one a table.
        times: what they cost.
        step: milliseconds.
        shortfall: bytes missing on the fullest rank; 0 when everything fits.
    """

    chosen: tuple[Chosen, ...]
    times: TableTimes
    step: float
    shortfall: float

    @property
    def score(self) -> tuple[float, float]:
        """Fitting comes before fast."""
        return (self.shortfall, self.step)


class Assigner:
    """Assigns tables for one design.

    Args:
        tables: in feature order.
        cluster: machines and free memory.
        model: the step.
        local_size: ranks a node, for types by node.
    """

    def __init__(self, tables: Sequence[Table], cluster: Cluster, model: StepModel, local_size: int) -> None:
        self.tables, self.cluster, self.model, self.local_size = tables, cluster, model, local_size
        self.world = cluster.topology.world
        self._everyone = tuple(range(self.world))

    def rate(self, chosen: Sequence[Chosen]) -> Assignment:
        """What an assignment costs."""
        return self._rated(tuple(chosen), add_all(self.cluster, chosen))

    def _rated(self, chosen: tuple[Chosen, ...], loads: Loads) -> Assignment:
        times = loads.times()
        return Assignment(chosen, times, self.model.step(times), loads.shortfall())

    # Greedy

    def greedy(self, slopes: TableTimes, only: str = "") -> Assignment:
        """Largest tables first, each where the weighted times grow least.

        Args:
            slopes: weights of the times.
            only: one exchange, where a table has a choice; empty for both.
        """
        loads = Loads(self.cluster)
        placed: dict[int, Chosen] = {}
        for index in sorted(range(len(self.tables)), key=lambda i: (-self.size(i), i)):
            placed[index] = self._least(self.tables[index], loads, slopes, only)
            loads.add(*placed[index])
        return self._rated(tuple(placed[i] for i in range(len(self.tables))), loads)

    def size(self, index: int) -> float:
        """What tables are ordered by: bytes held, looked up and sent."""
        kind = self.tables[index].kinds[0]
        return float(kind.held.sum() + kind.gather.sum() + kind.own.sum())

    def _least(self, table: Table, loads: Loads, slopes: TableTimes, only: str) -> Chosen:
        kinds = [kind for kind in table.kinds if kind.exchange == only] or table.kinds
        busy = self._busy(loads, slopes)
        best: tuple[tuple[float, float, int], Chosen] | None = None
        for kind in kinds:
            ranks = table.pinned or self._quiet(kind, loads, busy)
            loads.add(kind, ranks)
            value = (loads.shortfall(), self._guess(loads, slopes), kind.num_shards)
            loads.add(kind, ranks, -1)
            if best is None or value < best[0]:
                best = (value, (kind, () if kind.replicated else ranks))
        assert best is not None
        return best[1]

    def _busy(self, loads: Loads, slopes: TableTimes) -> np.ndarray:
        """Weighted seconds of each rank; among equals the emptier one is less busy."""
        rows, pooled, _, lookup, update = loads.phases()
        busy = slopes.lookup * lookup + slopes.update * update + slopes.exchange * (rows + pooled)
        return busy + 1e-9 * loads.data[5] / self.cluster.free.clip(min=1.0)

    def _guess(self, loads: Loads, slopes: TableTimes) -> float:
        """Weighted times, with half of the mean load so that an early table does not hide behind a larger one."""
        phases = loads.phases()
        mean = slopes.lookup * phases[3].mean() + slopes.update * phases[4].mean()
        return weighted(loads.joined(phases.max(axis=1)), slopes) + 500 * float(mean)

    def _quiet(self, kind: Kind, loads: Loads, busy: np.ndarray) -> tuple[int, ...]:
        """Ranks for a kind: the least busy with room, or the least busy node."""
        room = self.cluster.free - loads.used()
        need = float(kind.packed[5].max())
        cost = busy + np.where(room < need, 1e9, 0.0)
        return next(self._places(kind, cost))

    # Places

    def _places(self, kind: Kind, cost: np.ndarray) -> Iterator[tuple[int, ...]]:
        """Rank lists for a kind, cheapest first by `cost`."""
        if kind.replicated or kind.sharding == "row_wise":
            yield self._everyone[: kind.num_shards] if not kind.replicated else ()
        elif kind.sharding == "table_wise":
            yield from ((int(rank),) for rank in np.argsort(cost, kind="stable"))
        elif kind.sharding == "column_wise":
            yield tuple(sorted(int(rank) for rank in np.argsort(cost, kind="stable")[: kind.col_blocks]))
        else:
            yield from self._by_node(kind, cost)

    def _by_node(self, kind: Kind, cost: np.ndarray) -> Iterator[tuple[int, ...]]:
        local = self.local_size
        by_node = cost.reshape(-1, local)
        nodes = [int(node) for node in np.argsort(by_node.max(axis=1), kind="stable")]
        if kind.sharding == "grid":
            picked = sorted(nodes[: kind.col_blocks])
            # Row-block-major: shard (i, j) lies on rank i of node j.
            yield tuple(node * local + i for i in range(local) for node in picked)
            return
        for node in nodes:
            if kind.sharding == "table_row_wise":
                yield tuple(range(node * local, (node + 1) * local))
            else:
                inside = np.argsort(by_node[node], kind="stable")[: kind.col_blocks]
                yield tuple(sorted(node * local + int(i) for i in inside))

    # Local search

    def improve(self, start: Assignment, effort: int, stop: Stop) -> Assignment:
        """Moves tables one at a time while that evens out the load, and keeps the fastest assignment on the way.

        The guide is a smooth stand-in for the longest rank (a high power mean), so that a move pays even where several
        ranks are equally late; what counts is the step.

        Args:
            effort: most places that are looked at.
            stop: says when the time box is used up.
        """
        best, chosen, left = start, list(start.chosen), effort
        moved = True
        while moved and left > 0 and not stop():
            moved = False
            slopes = self.model.slopes(best.times)
            loads = add_all(self.cluster, chosen)
            for index in self._order(chosen, loads, slopes):
                old = chosen[index]
                chosen[index], looked = self._move(old, loads, index, slopes)
                left -= looked
                moved = moved or chosen[index] is not old
                if left <= 0 or stop():
                    break
            rated = self.rate(chosen)
            best = rated if rated.score < best.score else best
        return self._settle(best, max(effort // 8, 100), stop)

    def _order(self, chosen: Sequence[Chosen], loads: Loads, slopes: TableTimes) -> list[int]:
        """Tables to move: those with a shard on the rank that takes longest first, large before small."""
        worst = int(np.argmax(self._busy(loads, slopes) + np.where(loads.used() > self.cluster.free, 1e9, 0.0)))
        return sorted(range(len(self.tables)), key=lambda i: (worst not in chosen[i][1], -self.size(i), i))

    def _move(self, old: Chosen, loads: Loads, index: int, slopes: TableTimes) -> tuple[Chosen, int]:
        """The place of one table with the least smooth load, which is in `loads` afterwards; and places looked at."""
        before = (loads.shortfall(), self._smooth(loads, slopes))
        loads.add(*old, -1)
        best, looked = old, 0
        for option in self._options(index, self._busy(loads, slopes)):
            looked += 1
            loads.add(*option)
            value = (loads.shortfall(), self._smooth(loads, slopes))
            loads.add(*option, -1)
            if value < (before[0] * (1 - _SLACK), before[1] * (1 - 1e-6)):
                best, before = option, value
        loads.add(*best)
        return best, looked

    def _options(self, index: int, busy: np.ndarray) -> Iterator[Chosen]:
        """Places of one table: every kind, on the least busy ranks."""
        table, most = self.tables[index], self.world if self.world <= _MANY_RANKS else 2
        for kind in table.kinds:
            if table.pinned and not kind.replicated:
                yield kind, table.pinned
            else:
                yield from ((kind, ranks) for ranks in itertools.islice(self._places(kind, busy), most))

    def _smooth(self, loads: Loads, slopes: TableTimes) -> float:
        """The weighted times with a power mean in place of every maximum, milliseconds."""
        phases = loads.phases()
        top = phases.max(axis=1).clip(min=1e-30)
        means = top * ((phases / top[:, None]) ** _POWER).mean(axis=1) ** (1 / _POWER)
        return weighted(loads.joined(means), slopes)

    def _settle(self, best: Assignment, effort: int, stop: Stop) -> Assignment:
        """Single moves by the step itself, until none helps or the effort is used up."""
        left, moved = effort, True
        while moved and left > 0 and not stop():
            moved = False
            loads = add_all(self.cluster, best.chosen)
            for index in self._order(best.chosen, loads, self.model.slopes(best.times)):
                old = best.chosen[index]
                loads.add(*old, -1)
                for option in self._options(index, self._busy(loads, _ALIKE)):
                    left -= 1
                    loads.add(*option)
                    better = self._faster(best, loads, index, option)
                    loads.add(*option, -1)
                    best, moved = better or best, moved or better is not None
                loads.add(*best.chosen[index])
                if left <= 0 or stop():
                    break
        return best

    def _faster(self, best: Assignment, loads: Loads, index: int, new: Chosen) -> Assignment | None:
        """The assignment with one table moved, if it fits no worse and is faster, or fits better."""
        short, times, limit = loads.shortfall(), loads.times(), best.step * (1 - _SLACK)
        fits_better = short < best.shortfall * (1 - _SLACK)
        if not fits_better and (short > best.shortfall or self.model.bound(times) >= limit):
            return None
        step = self.model.step(times)
        if not fits_better and step >= limit:
            return None
        chosen = (*best.chosen[:index], new, *best.chosen[index + 1 :])
        return Assignment(chosen, times, step, short)


def weighted(times: TableTimes, slopes: TableTimes) -> float:
    """Milliseconds by which the times lengthen a step, to first order."""
    return sum(a * b for a, b in zip(times, slopes, strict=True))
