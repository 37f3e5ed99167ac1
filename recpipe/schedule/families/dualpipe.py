"""DualPipe and DualPipeV: a forward of one direction paired with a backward of the other.

`phases` is the order of one rank in terms of two phases. DualPipe runs a direction in each; DualPipeV runs the two ends
of a tower folded in a V.
"""

from __future__ import annotations

from dataclasses import replace

from recpipe.errors import ScheduleError
from recpipe.schedule.families.base import (
    Family,
    Request,
    act,
    both_ways,
    folded,
    one_step,
    refuse_microbatches,
)
from recpipe.schedule.ir import Action, Op, Placement, Program

Slot = tuple[int, int]
"""(replica, stage) of one phase."""


class _Line:
    """The order of one rank while it grows."""

    def __init__(self, slots: tuple[Slot, Slot]) -> None:
        self.slots = slots
        self.order: list[Action] = []
        self.count = {(op, phase): 0 for op in "FB" for phase in (0, 1)}
        self.waiting: list[Action] = []
        self.fused: list[Action] = []

    def _next(self, kind: str, phase: int) -> tuple[int, int, int]:
        m = self.count[kind, phase]
        self.count[kind, phase] = m + 1
        replica, stage = self.slots[phase]
        return stage, m, replica

    def forward(self, phase: int) -> None:
        self.order.append(act(Op.F, *self._next("F", phase)))

    def backward(self, phase: int) -> None:
        self.order.append(act(Op.B, *self._next("B", phase)))

    def both(self, ahead: int, back: int) -> None:
        """A forward of one phase fused with a backward of the other."""
        self.forward(ahead)
        self.fused.append(self.order[-1])
        self.backward(back)

    def split(self, phase: int) -> None:
        """The input half now; the weight half waits."""
        where = self._next("B", phase)
        self.order.append(act(Op.I, *where))
        self.waiting.append(act(Op.W, *where))

    def weight(self) -> None:
        self.order.append(self.waiting.pop(0))


def phases(h: int, half: int, each: int, slots: tuple[Slot, Slot]) -> _Line:
    """Order of a rank at distance h from its end, `half` ranks to the middle, `each` microbatches a phase."""
    line = _Line(slots)
    for _ in range(2 * (half - h - 1)):
        line.forward(0)
    for _ in range(h + 1):
        line.forward(0)
        line.forward(1)
    for _ in range(half - h - 1):
        line.split(1)
        line.weight()
        line.forward(1)
    _steady(line, each - 2 * half + h + 1, half - h - 1)
    _drain(line, h, half)
    return line


def _steady(line: _Line, pairs: int, tail: int) -> None:
    for _ in range(pairs):
        line.both(0, 1)
        line.both(1, 0)
    for _ in range(tail):
        line.backward(1)
        line.both(1, 0)


def _drain(line: _Line, h: int, half: int) -> None:
    for k in range(2 * (h + 1)):
        phase = 1 - k % 2
        if k <= h:
            line.backward(phase)
        else:
            line.split(phase)
    for _ in range(half - h - 1):
        line.weight()
        line.split(0)
    for _ in range(h + 1):
        line.weight()


def build(request: Request) -> Program:
    """P even, M even and at least 2P. Raises ScheduleError that says which would do."""
    p, half = request.ranks, request.ranks // 2
    if p % 2:
        raise ScheduleError(f"dualpipe needs an even number of ranks, not {p}. mesh.stages={p + 1} would do.")
    why = "both directions take half of at least 2 * mesh.stages"
    refuse_microbatches("dualpipe", request.microbatches, 2, 2 * p, why)
    each = request.microbatches // 2
    lines = []
    for rank in range(p):
        ends: tuple[Slot, Slot] = ((0, rank), (1, p - 1 - rank))
        slots = ends if rank < half else (ends[1], ends[0])
        lines.append(phases(min(rank, p - 1 - rank), half, each, slots))
    return _program("dualpipe", both_ways(p), each, lines)


def build_v(request: Request) -> Program:
    """M at least 2p. Raises ScheduleError that says which would do."""
    p = request.ranks
    refuse_microbatches("dualpipev", request.microbatches, 1, 2 * p, "it starts from 2 * mesh.stages in flight")
    lines = [phases(r, p, request.microbatches, ((0, r), (0, 2 * p - 1 - r))) for r in range(p)]
    return _program("dualpipev", folded(p), request.microbatches, lines)


def _program(name: str, placement: Placement, each: int, lines: list[_Line]) -> Program:
    program = one_step(name, placement, each, [line.order for line in lines])
    return replace(program, fused=frozenset(action for line in lines for action in line.fused))


FAMILY = Family("dualpipe", "two directions, forward paired with backward", build)
FAMILY_V = Family("dualpipev", "DualPipe folded in a V: one copy of the weights", build_v)
