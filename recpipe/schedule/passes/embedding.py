"""Place the table exchange of every step.

`step`: ids are routed, rows looked up once, rows travel for each microbatch as first needed, row gradients as last
used, one update. `route`: the same, with the ids of the next step routed under this one.
`ahead`: the same, with the ids of the next two steps routed under this one, and the rows of the next step that this one
does not touch gathered and sent under it (PL, PO); the rest follow after the update.
`spread`: the same, with the gradients of rows that the next step does not touch sent and applied under that (DG, DU).

Every member issues the collectives in one common order, read off the first consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recpipe.errors import ScheduleError
from recpipe.schedule.deps import Relation
from recpipe.schedule.ir import COMPUTE_OPS, WHOLE_STEP, Action, Op, Program

MODES = ("none", "step", "route", "ahead", "spread")
_STEPS_AHEAD = {"step": 0, "route": 1, "ahead": 2, "spread": 2}
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
    defers = exchange.mode == "spread" and program.steps > 1
    found = []
    for rank in program.placement.consumers:
        line = _Rank(program, rank, exchange.buffers)
        found.append(line.sequence(_by_step(program.orders[rank], program.steps)[0], ahead, defers))
    if any(other != found[0] for other in found):
        line = _Rank(program, program.placement.consumers[0], 0)
        return line.sequence(_by_step(program.orders[line.rank], program.steps)[0], ahead, defers)
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

    def sequence(self, part: list[Action], ahead: int, defers: bool) -> list[Template]:
        """Collectives of one step in the order that suits this consumer, and DU.

        Args:
            ahead: steps that ids are routed early.
            defers: whether gradients are left to the next step.
        """
        numbers = range(self.program.microbatches)
        rows: list[Template] = [(Op.EO, m, 0) for m in numbers]
        gradients: list[Template] = [(Op.EG, m, 0) for m in numbers]
        others: list[Template] = [(Op.ED, WHOLE_STEP, ahead)] if ahead else []
        others += [(Op.DG, WHOLE_STEP, -1), (Op.DU, WHOLE_STEP, -1)] if defers else []
        others += [(Op.PO, WHOLE_STEP, 1)] if ahead == 2 else []
        # At the same place gradients leave first where others follow a backward, to be right behind it.
        items = [*rows, *gradients, *others] if defers else [*rows, *others, *gradients]
        items.sort(key=self._spots(part, defers).of)
        return items

    def step(self, part: list[Action], step: int, sequence: list[Template]) -> list[Action]:
        """The actions of one step with the exchange in place."""
        ahead = max((later for op, _, later in sequence if op is Op.ED), default=0)
        at: dict[int, list[Action]] = {0: self._start(step, ahead)}
        spots = self._spots(part, any(op is Op.DG for op, *_ in sequence))
        place = 0
        for item in sequence:
            op, microbatch, later = item
            if not 0 <= step + later < self.program.steps:
                continue
            if self.consumes and not (op is Op.ED and spots.routes_early(later)):
                place = max(place, spots.of(item))
            if op is Op.PO:
                at.setdefault(place, []).append(self._make(Op.PL, step + later))
            at.setdefault(place, []).append(self._make(op, step + later, microbatch))
        body = [one for k in range(len(part) + 1) for one in (*at.get(k, ()), *part[k : k + 1])]
        return [*body, self._make(Op.EU, step)]

    def _spots(self, part: list[Action], defers: bool) -> _Spots:
        return _Spots(part, self.buffers, self.program.fused, self.program.placement.num_stages == 1, defers)

    def _start(self, step: int, ahead: int) -> list[Action]:
        routes = [] if ahead and step else [self._make(Op.ED, step)]
        if step == 0:
            routes += [self._make(Op.ED, later) for later in range(1, ahead)]
        return [*routes, self._make(Op.EL, step)]

    def _make(self, op: Op, step: int, microbatch: int = WHOLE_STEP) -> Action:
        return Action(op, self.stage, microbatch, self.replica, step)


class _Spots:
    """Where the exchanges of one step belong among the compute of a consumer."""

    def __init__(
        self, part: list[Action], buffers: int, fused: frozenset[Action], is_alone: bool, defers: bool
    ) -> None:
        first = [(k, a) for k, a in enumerate(part) if a.stage == 0]
        self.forward = [k for k, a in first if a.op is Op.F]
        self.number = {a.microbatch: i for i, (_, a) in enumerate((k, a) for k, a in first if a.op is Op.F)}
        self.backward = {a.microbatch: k + 1 for k, a in first if a.op in _BACKWARD}
        place = next((k for k, a in enumerate(part) if a.op in _BACKWARD), 0)
        self.first_backward = place - 1 if place and part[place - 1] in fused else place
        self.before_updates = next((k for k, a in enumerate(part) if a.op is Op.OPT), len(part))
        self.buffers, self.is_alone, self.defers = buffers, is_alone, defers

    def routes_early(self, later: int) -> bool:
        """Whether ids of a later step are routed as soon as the order of collectives allows.

        The last of the dense gradients is what a rank without other stages waits for; it routes ids under that, if they are
        those of a step that is not the next.
        """
        return later < 2 or not self.is_alone

    def of(self, item: Template) -> int:
        """Rows: early, but no more than `buffers` microbatches ahead. Gradients: right after their backward.

        Deferred gradients go right behind the first forward, which has its rows by then. Rows of the next step go before
        the first backward, where a first stage waits; after deferred updates not before a second forward, to give them time.
        """
        op, microbatch, later = item
        if op is Op.EG:
            return self.backward[microbatch]
        if op is Op.ED and not self.routes_early(later):
            return self.before_updates
        if op is Op.DG:
            return self.forward[0] + 1
        if op is not Op.EO:
            return max(self.first_backward, *self.forward[:2]) if self.defers and op is not Op.ED else self.first_backward
        if not self.buffers:
            return 0
        return self.forward[max(0, self.number[microbatch] - self.buffers + 1)]
