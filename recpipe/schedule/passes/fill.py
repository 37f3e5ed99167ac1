"""Move owner-side table work (PL, EL, EU) into the bubbles of its rank, by simulation.

The program is simulated as if that work took no time, each piece is put in the first bubble that holds it (else the
longest one it may use), and the result is kept only if its own simulation is no slower.
"""

from __future__ import annotations

from dataclasses import replace

from recpipe.schedule.cost import Cost, Durations
from recpipe.schedule.deps import COMPUTE, Relation
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.simulate import simulate

_MOVABLE = (Op.PL, Op.EL, Op.EU)
_COLLECTIVE = (Op.ED, Op.PO, Op.EO, Op.EG)


def fill_bubbles(program: Program, cost: Cost, rounds: int = 2) -> Program:
    """Same actions, table work moved inside each rank. Never slower than `program` in simulation."""
    best, shortest = program, simulate(program, cost).makespan
    for _ in range(rounds):
        moved = _moved(best, cost)
        makespan = simulate(moved, cost).makespan
        if makespan >= shortest:
            break
        best, shortest = moved, makespan
    return best


def _moved(program: Program, cost: Cost) -> Program:
    free = simulate(program, replace(cost, lookup=0.0, update=0.0))
    span = {(event.rank, event.action): (event.start, event.end) for event in free.events}
    durations = Durations(program, cost)
    relation = Relation(program)
    orders = []
    for rank, order in enumerate(program.orders):
        line = _Line(list(order), {a: span[rank, a] for a in order}, relation)
        for action in order:
            if action.op in _MOVABLE:
                line.move(action, durations.of(action))
        orders.append(line.order)
    return program.with_orders(orders)


class _Line:
    """The order of one rank and when its actions ran without table work."""

    def __init__(self, order: list[Action], span: dict[Action, tuple[float, float]], relation: Relation) -> None:
        self.order, self.span, self.relation = order, span, relation

    def move(self, action: Action, length: float) -> None:
        """Put `action` in the first bubble of its window that holds `length`, else in the longest."""
        here = self.order.index(action)
        low, high, ready = self._window(action, here)
        rest = self.order[:here] + self.order[here + 1 :]
        best, room = here, self._idle(rest, here, ready)
        for place in range(low, high):
            idle = self._idle(rest, place, ready)
            if room >= length:
                break
            inside = place > 0 and rest[place - 1] in self.relation.program.fused
            if idle > room and not inside:
                best, room = place, idle
        self._put(action, rest, best)

    def _put(self, action: Action, rest: list[Action], place: int) -> None:
        """Insert, and bring collectives that must follow it along, in their order."""
        follows = Op.PO if action.op is Op.PL else Op.EO
        first = next((k for k, a in enumerate(rest) if a.op is follows and a.step == action.step), place)
        head, tail = rest[:place], rest[place:]
        if action.op is Op.EU or first >= place:
            self.order = [*head, action, *tail]
            return
        carried = [a for a in head[first:] if a.op in _COLLECTIVE]
        kept = [a for a in head[first:] if a.op not in _COLLECTIVE]
        self.order = [*head[:first], *kept, action, *carried, *tail]

    def _window(self, action: Action, here: int) -> tuple[int, int, float]:
        """First and one past the last place allowed, and when its inputs are there."""
        producers = [a for a in self.relation.producers(action) if a in self.span]
        guards = [*producers, *self._guards(action)]
        spots = [self.order.index(a) for a in guards]
        ready = max((self.span[a][1] for a in guards), default=0.0)
        users = self._users(action)
        stop = next((k for k, a in enumerate(self.order) if k > here and a in users), len(self.order))
        return max(spots, default=-1) + 1, max(stop, here + 1), ready

    def _guards(self, action: Action) -> list[Action]:
        """Updates that must come first for rows to be exact: of the step before, or for early rows the one before it."""
        back = {Op.EL: 1, Op.PL: 2}.get(action.op, 0)
        guard = action._replace(op=Op.EU, step=action.step - back)
        return [guard] if back and guard in self.span else []

    def _users(self, action: Action) -> set[Action]:
        """The first of these ends the window; collectives of the same step are carried along instead."""
        if action.op is Op.EU:
            return {action._replace(op=Op.EL, step=action.step + 1), action._replace(op=Op.PL, step=action.step + 2)}
        if action.op is Op.PL:
            return {action._replace(op=Op.EU, step=action.step - 1)}
        first = [a for a in self.order if a.step == action.step and a.op in (Op.F, Op.EG)]
        return set(first[:1])

    def _idle(self, rest: list[Action], place: int, ready: float) -> float:
        """Idle compute time between the neighbours of `place`, after `ready`."""
        before = next((a for a in reversed(rest[:place]) if self.relation.lane(a) == COMPUTE), None)
        after = next((a for a in rest[place:] if self.relation.lane(a) == COMPUTE), None)
        start = max(ready, self.span[before][1] if before else 0.0)
        if after is None:
            return 0.0
        return self.span[after][0] - start
