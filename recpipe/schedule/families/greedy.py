"""Greedy list scheduling from costs: B before F before W under a memory bound, with a warm-up that absorbs slow links.

The warm-up x_i of stage i (forwards ahead of backwards) is 1 on the last stage and grows towards the first by
``d_i = min(N - 2S, max(ceil((tF_i + tB_i + 2 c_i) / (tF_(i+1) + tB_(i+1))), 2))``: a delay c_i on link i is hidden by
more forwards in flight. tB is the input half.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil

from recpipe.schedule.cost import Cost
from recpipe.schedule.families.base import Family, Request, act, linear, one_step
from recpipe.schedule.ir import Action, Op, Program


@dataclass(frozen=True)
class _Times:
    """Per stage durations, and the time of a message over each link."""

    forward: list[float]
    input: list[float]
    weight: list[float]
    link: list[float]


def _times(cost: Cost, ranks: int) -> _Times:
    delay = [*cost.delay, *[0.0] * ranks]
    hop = [cost.link(i, i + 1).time(cost.activation_bytes) + delay[i] for i in range(ranks - 1)]
    forward, half, weight = (
        [cost.compute(op, stage, ranks, ranks) for stage in range(ranks)] for op in (Op.F, Op.I, Op.W)
    )
    return _Times(forward, half, weight, hop)


def warm_up(cost: Cost, ranks: int, microbatches: int) -> list[int]:
    """Forwards that each stage may be ahead of its backwards, first stage first."""
    times = _times(cost, ranks)
    round_trip = [f + i for f, i in zip(times.forward, times.input, strict=True)]
    ahead = [1]
    for i in reversed(range(ranks - 1)):
        need = (round_trip[i] + 2 * times.link[i]) / round_trip[i + 1] if round_trip[i + 1] else 2
        ahead.append(ahead[-1] + max(1, min(microbatches - 2 * ranks, max(ceil(need - 1e-9), 2))))
    return ahead[::-1]


class _Stage:
    """One rank while the list is made: what has arrived, what is done."""

    def __init__(self, rank: int, ahead: int, total: int, memory: float | None) -> None:
        self.rank, self.total = rank, total
        self.ahead = ahead
        self.live = total if memory is None else max(1, int(memory))
        self.busy_until = 0.0
        self.arrived = {Op.F: [0.0] * total if rank == 0 else [], Op.I: []}
        self.done = {Op.F: 0, Op.I: 0, Op.W: 0}
        self.order: list[Action] = []

    def _ready(self, op: Op, now: float) -> bool:
        number = self.done[op]
        return number < len(self.arrived[op]) and self.arrived[op][number] <= now

    def pick(self, now: float) -> Op | None:
        """B before F before W among what can start at `now`."""
        done = self.done
        if self._ready(Op.I, now):
            return Op.I
        room = done[Op.F] - done[Op.I] < self.ahead and done[Op.F] - done[Op.W] < self.live
        if room and self._ready(Op.F, now):
            return Op.F
        return Op.W if done[Op.W] < done[Op.I] else None


def list_schedule(request: Request, ahead: list[int]) -> Program:
    """Make the list with given warm-ups; `greedy` computes them, tests and the slack table fix them."""
    times = _times(request.cost, request.ranks)
    stages = [_Stage(r, ahead[r], request.microbatches, request.memory) for r in range(request.ranks)]
    wake = [(0.0, r) for r in range(request.ranks)]
    while wake:
        now, rank = heapq.heappop(wake)
        stage = stages[rank]
        op = stage.pick(now) if stage.busy_until <= now else None
        if op is not None:
            for event in _run(stage, op, now, times, stages):
                heapq.heappush(wake, event)
    orders = [stage.order for stage in stages]
    return one_step("greedy", linear(request.ranks), request.microbatches, orders)


def _run(stage: _Stage, op: Op, now: float, times: _Times, stages: list[_Stage]) -> list[tuple[float, int]]:
    """Run one action and return the moments at which some rank should look again."""
    rank, last = stage.rank, len(stages) - 1
    stage.order.append(act(op, rank, stage.done[op]))
    stage.done[op] += 1
    length = {Op.F: times.forward, Op.I: times.input, Op.W: times.weight}[op][rank]
    stage.busy_until = end = now + length
    events = [(end, rank)]
    if op is Op.F:
        there, at = (rank + 1, end + times.link[rank]) if rank < last else (rank, end)
        stages[there].arrived[Op.F if rank < last else Op.I].append(at)
        events.append((at, there))
    elif op is Op.I and rank > 0:
        at = end + times.link[rank - 1]
        stages[rank - 1].arrived[Op.I].append(at)
        events.append((at, rank - 1))
    return events


def build(request: Request) -> Program:
    """Any number of microbatches."""
    return list_schedule(request, warm_up(request.cost, request.ranks, request.microbatches))


FAMILY = Family("greedy", "list scheduling from costs, B before F before W", build)
