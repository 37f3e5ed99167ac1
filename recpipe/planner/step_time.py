"""The time of one step as a function of what the tables cost: a schedule's program, compiled once and evaluated often.

It is the simulator's own graph and durations (`recpipe.schedule`). The longest chain of a program is the largest of many
sums, so the step is convex in the times of table work, and every chain found gives a bound from below that holds
everywhere. The search lives on these bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from recpipe.schedule.cost import Cost, Durations
from recpipe.schedule.deps import Relation
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.timeline import Event, Timeline, lane_name


class TableTimes(NamedTuple):
    """What the tables of a plan cost a step, milliseconds on the rank that takes longest.

    Args:
        route: ids to owners.
        lookup: gathering rows, and pooling them.
        exchange: rows on their way, and the same again for gradients.
        update: the one update of the step.
    """

    route: float = 0.0
    lookup: float = 0.0
    exchange: float = 0.0
    update: float = 0.0


_TIMES = ("route", "lookup", "row_bytes", "update")
"""Fields of `Cost` behind the table times, in the order of `TableTimes`."""
_ROUTED_AHEAD = {"none": 0, "step": 0, "route": 1, "ahead": 2}


class StepModel:
    """One program over several steps.

    A run is in its stride: ids that a running pipeline has routed before, and early rows of the first step, are there.

    Args:
        program: complete, of one lane.
        cost: without table times; bytes of rows count as milliseconds on its `exchange` tier.
        mode: how rows travel.
    """

    def __init__(self, program: Program, cost: Cost, mode: str) -> None:
        self.program, self.cost = program, replace(cost, route=0.0, lookup=0.0, row_bytes=0.0, update=0.0)
        self.early = cost.early if mode == "ahead" and program.steps > 1 else 0.0
        self._routed = _ROUTED_AHEAD[mode]
        self._graph = Graph(Relation(program), cost.host)
        self._order = self._graph.sorted_nodes()
        assert len(self._order) == len(self._graph.actions), f"{program.name} deadlocks"
        self._compile()
        self._planes: list[np.ndarray] = []

    def _compile(self) -> None:
        actions = self._graph.actions
        plain = Durations(self.program, self.cost)
        self._base = np.array([plain.node(action) for action in actions])
        self._free = [plain.occupies(action) for action in actions]
        warm = np.array([self._warm(action) for action in actions])
        columns = []
        for name in _TIMES:
            values: dict[str, Any] = {name: 1.0}
            unit = Durations(self.program, replace(self.cost, **values))
            more = np.array([unit.node(action) for action in actions]) - self._base
            columns.append(np.where(more > 1e-12, more, 0.0) * warm)
        self._slopes = np.stack(columns, axis=1)

    def _warm(self, action: Action) -> float:
        """Part of an action that is still to do when the first step begins."""
        if action.op is Op.ED and action.step < self._routed:
            return 0.0
        return 1.0 - self.early if action.step == 0 and action.op in (Op.EL, Op.EO) else 1.0

    def step(self, times: TableTimes) -> float:
        """Milliseconds a step."""
        _, end, plane = self._run(times)
        if not any(np.array_equal(plane, known) for known in self._planes):
            self._planes.append(plane)
        return max(end, default=0.0) / self.program.steps

    def bound(self, times: TableTimes) -> float:
        """A step that takes no longer than :meth:`step`, from the chains found so far."""
        point = np.array([1.0, *times])
        return max((float(plane @ point) for plane in self._planes), default=0.0)

    def slopes(self, times: TableTimes) -> TableTimes:
        """How much a step grows with each of the times."""
        return TableTimes(*self._run(times)[2][1:])

    def chain(self, times: TableTimes) -> dict[str, float]:
        """Milliseconds a step that each op contributes to the chain that ends last."""
        found: dict[str, float] = {}
        length = self._base + self._slopes @ np.array(times)
        _, end, cause = self._walk(times)
        node, whole = max(range(len(end)), key=end.__getitem__, default=-1), True
        while node >= 0:
            op = self._graph.actions[node].op.value
            found[op] = found.get(op, 0.0) + float(length[node] if whole else self._free[node]) / self.program.steps
            node, whole = cause[node]
        return found

    def timeline(self, times: TableTimes) -> Timeline:
        """What runs when, in milliseconds."""
        start, end, _ = self._run(times)
        node_of = self._graph.node_of
        events = [
            Event(rank, lane_name(action), action, start[node_of[action]], end[node_of[action]])
            for rank, order in enumerate(self.program.orders)
            for action in order
        ]
        return Timeline(tuple(events), len(self.program.orders), "ms")

    def _run(self, times: TableTimes) -> tuple[list[float], list[float], np.ndarray]:
        """Start and end of every node, and the chain that ends last as (constant, slopes) a step."""
        start, end, cause = self._walk(times)
        return start, end, self._chain(end, cause)

    def _walk(self, times: TableTimes) -> tuple[list[float], list[float], list[tuple[int, bool]]]:
        """Start and end of every node, and which node it waited for last (whole, or until its channel was free)."""
        graph = self._graph
        length = (self._base + self._slopes @ np.array(times)).tolist()
        start, end = [0.0] * len(length), [0.0] * len(length)
        cause = [(-1, False)] * len(length)
        for node in self._order:
            finish = end[node] = start[node] + length[node]
            for head in graph.next[node]:
                if finish > start[head]:
                    start[head], cause[head] = finish, (node, True)
            if graph.behind[node]:
                free = start[node] + self._free[node]
                for head in graph.behind[node]:
                    if free > start[head]:
                        start[head], cause[head] = free, (node, False)
        return start, end, cause

    def _chain(self, end: list[float], cause: list[tuple[int, bool]]) -> np.ndarray:
        plane = np.zeros(1 + len(_TIMES))
        node, whole = max(range(len(end)), key=end.__getitem__, default=-1), True
        while node >= 0:
            plane[0] += self._base[node] if whole else self._free[node]
            plane[1:] += self._slopes[node] if whole else 0.0
            node, whole = cause[node]
        return plane / self.program.steps
