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
_COLLECTIVE = (Op.ED, Op.PO, Op.EO, Op.EG, Op.DG)


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
        carried = self._carried(action, here)
        low, high, ready = self._window(action, here, carried)
        rest = self.order[:here] + self.order[here + 1 :]
        best, room = here, self._idle(rest, here, ready)
        for place in range(low, high):
            if room >= length:
                break
            idle = self._idle(rest, place, ready)
            if idle > room and self._is_open(rest, place):
                best, room = place, idle
        self._put(action, rest, best, carried)

    def _carried(self, action: Action, here: int) -> list[Action]:
        """Collectives behind a PL that may be issued later with it: the common order of the exchange stays.

        Rows of the running step must not wait, so if any are behind it nothing is carried.
        """
        if action.op is not Op.PL:
            return []
        behind = [a for a in self.order[here:] if a.op in _COLLECTIVE and a.step < action.step]
        ahead = action._replace(op=Op.PO)
        return [] if any(a.op is Op.EO for a in behind) else [ahead, *behind]

    def _put(self, action: Action, rest: list[Action], place: int, carried: list[Action]) -> None:
        """Insert, and bring the carried collectives that would come before it along, in their order."""
        late = [a for a in rest[:place] if a in carried]
        head = [a for a in rest[:place] if a not in carried]
        self.order = [*head, action, *late, *rest[place:]]

    def _window(self, action: Action, here: int, carried: list[Action]) -> tuple[int, int, float]:
        """First and one past the last place allowed, and when its inputs are there."""
        guards = [a for a in (*self.relation.producers(action), *_guards(action)) if a in self.span]
        spots = [self.order.index(a) for a in guards]
        ready = max((self.span[a][1] for a in guards), default=0.0)
        sources = {action, *carried}
        users = (k for k, a in enumerate(self.order) if k > here and self._waits(a, sources, carried))
        stop = next(users, len(self.order))
        return max(spots, default=-1) + 1, max(stop, here + 1), ready

    def _waits(self, action: Action, sources: set[Action], carried: list[Action]) -> bool:
        """Whether `action` must stay behind one of `sources`."""
        if action in carried:
            return False
        needs = (*self.relation.producers(action), *_guards(action))
        return any(producer in sources for producer in needs)

    def _is_open(self, rest: list[Action], place: int) -> bool:
        """Only in front of compute, so that messages of the compute before leave first; never inside a fused block."""
        inside = place > 0 and rest[place - 1] in self.relation.program.fused
        return not inside and self.relation.lane(rest[place]) == COMPUTE

    def _idle(self, rest: list[Action], place: int, ready: float) -> float:
        """Idle compute time between the neighbours of `place`, after `ready`."""
        before = next((a for a in reversed(rest[:place]) if self.relation.lane(a) == COMPUTE), None)
        after = next((a for a in rest[place:] if self.relation.lane(a) == COMPUTE), None)
        start = max(ready, self.span[before][1] if before else 0.0)
        return 0.0 if after is None else self.span[after][0] - start


def _guards(action: Action) -> list[Action]:
    """Updates that must come first for rows to be exact: of the step before, or for early rows of the one before that."""
    back = {Op.EL: 1, Op.PL: 2}.get(action.op, 0)
    if not back:
        return []
    updates = [action._replace(op=Op.EU, step=action.step - back), action._replace(op=Op.DU, step=action.step - 2)]
    return [update for update in updates if update.step >= 0]
