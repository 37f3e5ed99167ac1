"""A tiny trainer in floats that executes a program literally: the judge of whether a changed order is harmless.

Stages are scalar functions, tables are dictionaries of scalar rows split over their owners, both optimizers are Adagrad
(so that two half updates differ from one). Messages are matched first in, first out by channel, as a network would do,
not by name; weights are read when an action runs, not when it was meant to run. So a wrong order gives wrong numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict

from recpipe.schedule.deps import SENDS, Relation
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Op, Program

NUM_ROWS = 12


def rows_of(replica: int, microbatch: int, step: int) -> list[int]:
    """Rows a microbatch reads: repeated inside a step and across steps."""
    seed = 7 * replica + 3 * microbatch + 5 * step
    return [(seed + k * k) % NUM_ROWS for k in range(3)]


def forward(x: float, w: float) -> float:
    return math.tanh(x * w + 0.1)


def backward(x: float, w: float, gradient: float) -> tuple[float, float]:
    """Gradients of the input and of the weight."""
    slope = gradient * (1 - forward(x, w) ** 2)
    return slope * w, slope * x


class Adagrad:
    """Values with one Adagrad state each."""

    def __init__(self, values: dict[object, float]) -> None:
        self.values, self.sums = dict(values), dict.fromkeys(values, 0.0)

    def update(self, key: object, gradient: float) -> None:
        self.sums[key] += gradient**2
        self.values[key] -= 0.1 * gradient / (math.sqrt(self.sums[key]) + 1e-3)


def initial(program: Program) -> tuple[dict[object, float], dict[object, float]]:
    weights = {stage: 0.5 + 0.1 * stage for stage in range(program.placement.num_stages)}
    return weights, {row: 0.2 + 0.05 * row for row in range(NUM_ROWS)}


def reference(program: Program) -> tuple[dict[object, float], dict[object, float]]:
    """Weights and rows after a plain loop over everything."""
    weights, table = (Adagrad(values) for values in initial(program))
    for step in range(program.steps):
        weight_sum: dict[object, float] = defaultdict(float)
        row_sum: dict[object, float] = defaultdict(float)
        for replica in range(program.placement.num_replicas):
            for microbatch in range(program.microbatches):
                rows = rows_of(replica, microbatch, step)
                inputs = [sum(table.values[row] for row in rows)]
                for stage in weights.values:
                    inputs.append(forward(inputs[-1], weights.values[stage]))
                gradient = inputs[-1]
                for stage in reversed(list(weights.values)):
                    gradient, part = backward(inputs[stage], weights.values[stage], gradient)
                    weight_sum[stage] += part
                for row in rows:
                    row_sum[row] += gradient
        for stage, total in weight_sum.items():
            weights.update(stage, total)
        for row, total in row_sum.items():
            table.update(row, total)
    return weights.values, table.values


class Run:
    """One execution of a program with tables on every rank."""

    def __init__(self, program: Program) -> None:
        self.program, self.place = program, program.placement
        self.relation = Relation(program)
        weights, rows = initial(program)
        self.weights = {
            (replica, stage): Adagrad({stage: weights[stage]})
            for replica in range(self.place.num_replicas)
            for stage in range(self.place.num_stages)
        }
        self.owner = {row: row % self.place.num_ranks for row in rows}
        self.table = Adagrad(rows)
        self.inputs: dict[Action, float] = {}
        self.outputs: dict[Action, float] = {}
        self.gradients: dict[Action, float] = {}
        self.sums: dict[tuple[int, int, int], float] = defaultdict(float)
        self.gathered: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self.window: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self.owned: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.kept: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.deferred: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.defers = {action.step for order in program.orders for action in order if action.op is Op.DG}
        self.partner = self._match_messages()

    def _match_messages(self) -> dict[Action, Action]:
        """Receive to send, first in, first out."""
        queues: dict[object, tuple[list[Action], list[Action]]] = defaultdict(lambda: ([], []))
        for order in self.program.orders:
            for action in order:
                if action.op in (Op.SA, Op.SG, Op.RA, Op.RG):
                    queues[self.relation.channel(action)][action.op not in SENDS].append(action)
        return {r: s for sends, receives in queues.values() for s, r in zip(sends, receives, strict=True)}

    def run(self) -> tuple[dict[object, float], dict[object, float]]:
        """Execute everything in an order the graph allows; weights of replica 0, and rows."""
        graph = Graph(self.relation, "async")
        members: dict[int, list[Action]] = defaultdict(list)
        for order in self.program.orders:
            for action in order:
                members[graph.node_of[action]].append(action)
        order = graph.sorted_nodes()
        assert len(order) == len(graph.actions)
        for node in order:
            for action in sorted(members[node], key=lambda a: (a.op in (Op.B, Op.I), a)):
                self._do(action)
            self._reduce(members[node])
        return {s: self.weights[0, s].values[s] for s in range(self.place.num_stages)}, self.table.values

    def _do(self, action: Action) -> None:
        handler = getattr(self, f"_{action.op.value.lower()}", None)
        if handler is not None:
            handler(action)

    def _weight(self, action: Action) -> float:
        return self.weights[action.replica, action.stage].values[action.stage]

    def _f(self, action: Action) -> None:
        row = self.place.ranks[action.replica]
        if action.stage == 0:
            here = self.window[row[0], action.step]
            x = sum(here[r] for r in rows_of(action.replica, action.microbatch, action.step))
        elif row[action.stage] == row[action.stage - 1]:
            x = self.outputs[action._replace(stage=action.stage - 1)]
        else:
            x = self._received(action._replace(op=Op.RA))
        self.inputs[action] = x
        self.outputs[action] = forward(x, self._weight(action))

    def _received(self, receive: Action) -> float:
        send = self.partner[receive]
        if send.op is Op.SA:
            return self.outputs[send._replace(op=Op.F)]
        return self.gradients[send._replace(op=Op.F)]

    def _backward(self, action: Action) -> tuple[float, float]:
        whole = action._replace(op=Op.F)
        row = self.place.ranks[action.replica]
        if action.stage == len(row) - 1:
            gradient = self.outputs[whole]
        elif row[action.stage] == row[action.stage + 1]:
            gradient = self.gradients[whole._replace(stage=action.stage + 1)]
        else:
            gradient = self._received(action._replace(op=Op.RG))
        return backward(self.inputs[whole], self._weight(action), gradient)

    def _i(self, action: Action) -> None:
        self.gradients[action._replace(op=Op.F)] = self._backward(action)[0]

    def _w(self, action: Action) -> None:
        self.sums[action.replica, action.stage, action.step] += self._backward(action)[1]

    def _b(self, action: Action) -> None:
        self._i(action)
        self._w(action)

    def _reduce(self, group: list[Action]) -> None:
        if group[0].op is not Op.R:
            return
        keys = [(a.replica, a.stage, a.step) for a in group]
        total = sum(self.sums[key] for key in keys)
        self.sums.update(dict.fromkeys(keys, total))

    def _opt(self, action: Action) -> None:
        total = self.sums.pop((action.replica, action.stage, action.step))
        self.weights[action.replica, action.stage].update(action.stage, total)

    def _touched(self, step: int) -> set[int]:
        replicas, numbers = range(self.place.num_replicas), range(self.program.microbatches)
        return {row for k in replicas for m in numbers for row in rows_of(k, m, step)}

    def _gather(self, action: Action, rows: set[int]) -> None:
        rank = self.place.rank_of(action)
        here = self.gathered[rank, action.step]
        here.update({r: self.table.values[r] for r in rows if self.owner[r] == rank and r not in here})

    def _pl(self, action: Action) -> None:
        self._gather(action, self._touched(action.step) - self._touched(action.step - 1))

    def _el(self, action: Action) -> None:
        self._gather(action, self._touched(action.step))

    def _po(self, action: Action) -> None:
        self._bring(action, self._touched(action.step) - self._touched(action.step - 1))

    def _eo(self, action: Action) -> None:
        for replica, stage in self.place.slots[self.place.rank_of(action)]:
            if stage == 0:
                self._bring(action, set(rows_of(replica, action.microbatch, action.step)))

    def _bring(self, action: Action, rows: set[int]) -> None:
        here = self.window[self.place.rank_of(action), action.step]
        for row in rows - set(here):
            here[row] = self.gathered[self.owner[row], action.step][row]

    def _eg(self, action: Action) -> None:
        rank, step = self.place.rank_of(action), action.step
        late = self._touched(step) - self._touched(step + 1) if step in self.defers else set()
        for replica, stage in self.place.slots[rank]:
            if stage == 0:
                gradient = self.gradients[Action(Op.F, 0, action.microbatch, replica, step)]
                for row in rows_of(replica, action.microbatch, step):
                    if row in late:
                        self.kept[rank, step][row] += gradient
                    else:
                        self.owned[self.owner[row], step][row] += gradient

    def _dg(self, action: Action) -> None:
        for row, total in self.kept.pop((self.place.rank_of(action), action.step), {}).items():
            self.deferred[self.owner[row], action.step][row] += total

    def _eu(self, action: Action) -> None:
        self._update(self.owned[self.place.rank_of(action), action.step])

    def _du(self, action: Action) -> None:
        self._update(self.deferred[self.place.rank_of(action), action.step])

    def _update(self, sums: dict[int, float]) -> None:
        for row, total in sorted(sums.items()):
            self.table.update(row, total)


def same(first: dict[object, float], second: dict[object, float]) -> bool:
    return all(math.isclose(first[key], second[key], rel_tol=1e-12) for key in second)


def is_exact(program: Program) -> bool:
    """Whether running `program` gives the numbers of the plain loop."""
    weights, rows = Run(program).run()
    expected_weights, expected_rows = reference(program)
    return same(weights, expected_weights) and same(rows, expected_rows)


