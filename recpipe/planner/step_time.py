"""The time of one step as a function of what the tables cost: a schedule's program, compiled once and evaluated often.

It is the simulator's own graph and durations (`recpipe.schedule`). The longest chain of a program is the largest of many
sums, so the step is convex in the times of table work, and every chain found gives a bound from below that holds
everywhere. The search lives on these bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from recpipe.schedule.cost import Cost, Durations
from recpipe.schedule.deps import Relation
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.timeline import Event, Timeline, lane_name
from recpipe.schedule.wires import Wires


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


class Wait(Enum):
    """Until when an action waits for another: its end, its channel being free, its last byte having left; or until a part of
    a compute action before its end (`recpipe.schedule.inside`)."""

    END = "end"
    INSIDE = "inside"
    CHANNEL = "channel"
    WIRE = "wire"


_COLLECTIVE = (Op.PO, Op.EO, Op.EG, Op.DG, Op.R)
_ROUTED_AHEAD = {"none": 0, "step": 0, "route": 1, "ahead": 2, "spread": 2}


class StepModel:
    """One program over several steps.

    A run is in its stride: ids that a running pipeline has routed before, and early rows of the first step, are there;
    gradients that the last step would defer are left to the next.
    Where the host is synchronous, routing ids is work of the thread that computes.

    With `Cost.shared` messages of a rank share its link, one after the other, in the order in which they would be ready if
    tables cost nothing: an order that does not depend on table times, so that the step stays convex in them.

    Args:
        program: complete, of one lane.
        cost: without table times; bytes of rows count as milliseconds on its `exchange` tier.
        mode: how rows travel.
    """

    def __init__(self, program: Program, cost: Cost, mode: str) -> None:
        self.program, self.cost = program, replace(cost, lookup=0.0, row_bytes=0.0, update=0.0)
        self._sync = cost.host == "sync"
        self.early = cost.early if mode in ("ahead", "spread") and program.steps > 1 else 0.0
        self._defers = mode == "spread" and program.steps > 1
        self._routed = _ROUTED_AHEAD[mode]
        self._graph = Graph(Relation(program), cost.host, overlapped=cost.overlapped)
        self._order = self._graph.sorted_nodes()
        assert len(self._order) == len(self._graph.actions), f"{program.name} deadlocks"
        self._wire: list[list[int]] = [[] for _ in self._order]
        self._compile()
        if cost.shared:
            self._share_wires()
        self._planes: list[np.ndarray] = []

    def _compile(self) -> None:
        actions = self._graph.actions
        plain = Durations(self.program, self.cost)
        self._base = np.array([plain.node(action) for action in actions])
        self._free = [plain.occupies(action) for action in actions]
        warm = np.array([self._warm(action) for action in actions])
        columns = []
        for cost in self._units():
            unit = Durations(self.program, cost)
            more = np.array([unit.node(action) for action in actions]) - self._base
            columns.append(np.where(more > 1e-12, more, 0.0) * warm)
        self._slopes = np.stack(columns, axis=1)
        wires = Wires(plain)
        late = np.array([wires.link(a).alpha * wires.hops(a) if a.op in _COLLECTIVE else 0.0 for a in actions])
        self._sent = np.where([a.op in _COLLECTIVE for a in actions], np.maximum(self._base - late, 0.0), self._free)
        self._lags = [[(head, plain.part(part)) for head, part in heads] for heads in self._graph.inside]
        ends = ((wait, self._base, 1.0) for wait in (Wait.END, Wait.INSIDE))
        parts = (*ends, (Wait.CHANNEL, np.array(self._free), 0.0), (Wait.WIRE, self._sent, 1.0))
        self._parts = {wait: np.column_stack([constant, self._slopes * moves]) for wait, constant, moves in parts}

    def _units(self) -> Iterator[Cost]:
        """Costs in which one of the table times, in the order of `TableTimes`, is 1."""
        issue, place = self.cost.issue, self.program.placement
        routing = {f"ED{place.home(rank)[1]}" for rank in place.consumers}
        issued = {name: issue.get(name, issue.get("ED", 0.0)) + 1.0 for name in routing}
        own = {"issue": {**issue, **issued}} if self._sync else {"route": self.cost.route + 1.0}
        yield replace(self.cost, **own)
        yield replace(self.cost, lookup=1.0)
        yield replace(self.cost, row_bytes=1.0)
        yield replace(self.cost, update=1.0)

    def _warm(self, action: Action) -> float:
        """Part of an action that is still to do when the first step begins."""
        if action.op is Op.ED and action.step < self._routed and not self._sync:
            return 0.0
        begun = (Op.EO,) if self._sync else (Op.EL, Op.EO)
        if action.step == 0 and action.op in begun:
            return 1.0 - self.early
        return 1.0 - self.early if self._defers and action.op is Op.EG and action.step == self.program.steps - 1 else 1.0

    def _share_wires(self) -> None:
        """Lets what a rank sends wait for what it sent before."""
        ready, _, _ = self._walk(TableTimes())
        place = {node: number for number, node in enumerate(self._order)}
        for node in self._order:  # What starts before the end of another still comes behind it.
            for head in self._graph.successors(node):
                ready[head] = max(ready[head], ready[node])
        self._order.sort(key=lambda node: (ready[node], place[node]))
        place = {node: number for number, node in enumerate(self._order)}
        for rank, order in enumerate(self.program.orders):
            nodes = {self._graph.node_of[action] for action in order if self._sends(rank, action)}
            line = sorted(nodes, key=place.__getitem__)
            for first, second in zip(line, line[1:], strict=False):
                self._wire[first].append(second)

    def _sends(self, rank: int, action: Action) -> bool:
        """Whether `rank` puts bytes on its link in `action`."""
        if action.op in (Op.EG, Op.DG):
            return rank in self.program.placement.consumers
        if action.op is Op.R:
            return self.program.num_copies > 1
        return action.op in (Op.SA, Op.SG, Op.PO, Op.EO)

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
        point = np.array([1.0, *times])
        _, end, cause = self._walk(times)
        node, wait = max(range(len(end)), key=end.__getitem__, default=-1), Wait.END
        head = -1
        while node >= 0:
            op = self._graph.actions[node].op.value
            found[op] = found.get(op, 0.0) + float(self._parts[wait][node] @ point) / self.program.steps
            if wait is Wait.INSIDE:
                # What runs meanwhile is part of a forward or backward: that much of it is not on the chain.
                op = next(part.action.op.value for other, part in self._graph.inside[node] if other == head)
                found[op] = found.get(op, 0.0) - self._lag(node, head) / self.program.steps
            head, (node, wait) = node, cause[node]
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

    def _walk(self, times: TableTimes) -> tuple[list[float], list[float], list[tuple[int, Wait]]]:
        """Start and end of every node, and which node it waited for last, and how."""
        graph, wire = self._graph, self._wire
        more = self._slopes @ np.array(times)
        length, sent = (self._base + more).tolist(), (self._sent + more).tolist()
        start, end = [0.0] * len(length), [0.0] * len(length)
        cause = [(-1, Wait.END)] * len(length)
        for node in self._order:
            finish = end[node] = start[node] + length[node]
            for head in graph.next[node]:
                if finish > start[head]:
                    start[head], cause[head] = finish, (node, Wait.END)
            for head, lag in self._lags[node]:
                if finish - lag > start[head]:
                    start[head], cause[head] = finish - lag, (node, Wait.INSIDE)
            if graph.behind[node]:
                free = start[node] + self._free[node]
                for head in graph.behind[node]:
                    if free > start[head]:
                        start[head], cause[head] = free, (node, Wait.CHANNEL)
            for head in wire[node]:
                left = start[node] + sent[node]
                if left > start[head]:
                    start[head], cause[head] = left, (node, Wait.WIRE)
        return start, end, cause

    def _chain(self, end: list[float], cause: list[tuple[int, Wait]]) -> np.ndarray:
        plane = np.zeros(1 + len(TableTimes._fields))
        node, wait, head = max(range(len(end)), key=end.__getitem__, default=-1), Wait.END, -1
        while node >= 0:
            plane += self._parts[wait][node]
            if wait is Wait.INSIDE:
                plane[0] -= self._lag(node, head)
            head, (node, wait) = node, cause[node]
        return plane / self.program.steps

    def _lag(self, node: int, head: int) -> float:
        """By how much `head` starts before the end of `node`."""
        return next(lag for other, lag in self._lags[node] if other == head)
