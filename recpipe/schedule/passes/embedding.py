"""Place the table exchange of every step.

`step`: ids are routed, rows looked up once, rows travel for each microbatch as first needed, row gradients as last
used, one update. `route`: the same, with the ids of the next step routed under this one.
`ahead`: the same, with the ids of the next two steps routed under this one, and the rows of the next step that this one
does not touch gathered and sent under it (PL, PO); the rest follow after the update.

Every member issues the collectives in one common order, read off the first consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recpipe.errors import ScheduleError
from recpipe.schedule.deps import Relation
from recpipe.schedule.ir import COMPUTE_OPS, WHOLE_STEP, Action, Op, Program

MODES = ("none", "step", "route", "ahead")
_STEPS_AHEAD = {"step": 0, "route": 1, "ahead": 2}
"""Steps that ids are routed ahead of their own; rows that may travel early need those of two steps."""
_BACKWARD = (Op.B, Op.I)


@dataclass(frozen=True)
class Exchange:
    """How rows travel.

    Args:
        mode: one of `MODES`.
        buffers: microbatches whose rows may have arrived and not been used up; 0 for no limit.
    """

    mode: str = "none"
    buffers: int = 0


def add_exchange(program: Program, exchange: Exchange) -> Program:
    """Insert the embedding actions; every rank holds tables. Raises ScheduleError for an unknown mode."""
    if exchange.mode not in MODES:
        raise ScheduleError(f"schedule.embedding={exchange.mode!r} is not one of {', '.join(MODES)}.")
    if exchange.mode == "none":
        return program
    place = program.placement
    placed = replace(program, placement=replace(place, tables=tuple(range(place.num_ranks))))
    sequence = _common(placed, exchange)
    orders: list[list[Action]] = []
    for rank, order in enumerate(placed.orders):
        line = _Rank(placed, rank, exchange.buffers)
        parts = _by_step(order, program.steps)
        orders.append([one for step, part in enumerate(parts) for one in line.step(part, step, sequence)])
    return placed.with_orders(orders)


Template = tuple[Op, int, int]
"""(op, microbatch, steps after the current one) of a collective."""


def _common(program: Program, exchange: Exchange) -> list[Template]:
    """The collectives of one step in the order in which every member issues them."""
    ahead = _STEPS_AHEAD[exchange.mode] if program.steps > 1 else 0
    found = []
    for rank in program.placement.consumers:
        line = _Rank(program, rank, exchange.buffers)
        found.append(line.sequence(_by_step(program.orders[rank], program.steps)[0], ahead))
    if any(other != found[0] for other in found):
        line = _Rank(program, program.placement.consumers[0], 0)
        return line.sequence(_by_step(program.orders[line.rank], program.steps)[0], ahead)
    return found[0]


def _by_step(order: tuple[Action, ...], steps: int) -> list[list[Action]]:
    """Cut an order where the compute of a new step begins; late updates stay where they are."""
    parts: list[list[Action]] = [[] for _ in range(steps)]
    current = 0
    for action in order:
        if action.op in COMPUTE_OPS:
            current = max(current, action.step)
        parts[current].append(action)
    return parts


class _Rank:
    """Places the exchange on one rank, step by step. A place is an index: insert before the action there."""

    def __init__(self, program: Program, rank: int, buffers: int) -> None:
        self.program, self.rank, self.buffers = program, rank, buffers
        self.replica, self.stage = program.placement.home(rank)
        self.consumes = rank in program.placement.consumers
        self.relation = Relation(program)

    def sequence(self, part: list[Action], ahead: int) -> list[Template]:
        """Collectives of one step in the order that suits this consumer, with ids routed `ahead` steps early."""
        numbers = range(self.program.microbatches)
        items: list[Template] = [(Op.EO, m, 0) for m in numbers]
        items += [(Op.ED, WHOLE_STEP, ahead)] if ahead else []
        items += [(Op.PO, WHOLE_STEP, 1)] if ahead == 2 else []
        items += [(Op.EG, m, 0) for m in numbers]
        items.sort(key=self._spots(part).of)
        return items

    def step(self, part: list[Action], step: int, sequence: list[Template]) -> list[Action]:
        """The actions of one step with the exchange in place."""
        ahead = max((later for op, _, later in sequence if op is Op.ED), default=0)
        at: dict[int, list[Action]] = {0: self._start(step, ahead)}
        spots = self._spots(part)
        place = 0
        for item in sequence:
            op, microbatch, later = item
            if step + later >= self.program.steps:
                continue
            if self.consumes and not (op is Op.ED and spots.routes_early(later)):
                place = max(place, spots.of(item))
            if op is Op.PO:
                at.setdefault(place, []).append(self._make(Op.PL, step + later))
            at.setdefault(place, []).append(self._make(op, step + later, microbatch))
        body = [one for k in range(len(part) + 1) for one in (*at.get(k, ()), *part[k : k + 1])]
        return [*body, self._make(Op.EU, step)]

    def _spots(self, part: list[Action]) -> _Spots:
        return _Spots(part, self.buffers, self.program.fused, self.program.placement.num_stages == 1)

    def _start(self, step: int, ahead: int) -> list[Action]:
        routes = [] if ahead and step else [self._make(Op.ED, step)]
        if step == 0:
            routes += [self._make(Op.ED, later) for later in range(1, ahead)]
        return [*routes, self._make(Op.EL, step)]

    def _make(self, op: Op, step: int, microbatch: int = WHOLE_STEP) -> Action:
        return Action(op, self.stage, microbatch, self.replica, step)


class _Spots:
    """Where the exchanges of one step belong among the compute of a consumer."""

    def __init__(self, part: list[Action], buffers: int, fused: frozenset[Action], is_alone: bool) -> None:
        first = [(k, a) for k, a in enumerate(part) if a.stage == 0]
        self.forward = [k for k, a in first if a.op is Op.F]
        self.number = {a.microbatch: i for i, (_, a) in enumerate((k, a) for k, a in first if a.op is Op.F)}
        self.backward = {a.microbatch: k + 1 for k, a in first if a.op in _BACKWARD}
        place = next((k for k, a in enumerate(part) if a.op in _BACKWARD), 0)
        self.first_backward = place - 1 if place and part[place - 1] in fused else place
        self.before_updates = next((k for k, a in enumerate(part) if a.op is Op.OPT), len(part))
        self.buffers, self.is_alone = buffers, is_alone

    def routes_early(self, later: int) -> bool:
        """Whether ids of a later step are routed as soon as the order of collectives allows.

        The last of the dense gradients is what a rank without other stages waits for; it routes ids under that, if they are
        those of a step that is not the next.
        """
        return later < 2 or not self.is_alone

    def of(self, item: Template) -> int:
        """Rows: early, but no more than `buffers` microbatches ahead. Gradients: right after their backward.

        Rows of the next step go before the first backward, where a first stage waits.
        """
        op, microbatch, later = item
        if op is Op.EG:
            return self.backward[microbatch]
        if op is Op.ED and not self.routes_early(later):
            return self.before_updates
        if op is not Op.EO:
            return self.first_backward
        if not self.buffers:
            return 0
        return self.forward[max(0, self.number[microbatch] - self.buffers + 1)]
