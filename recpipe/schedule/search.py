"""The best order there is, for small cases: branch and bound over which rank does what next.

Microbatches are alike, so every rank may take each op in microbatch order and its order is a word over F, I and W. The
search walks the active schedules (Giffler and Thompson, 1960): take the action that could end first; some action of its
rank that could start before that end comes next. An optimal makespan is always among those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from recpipe.schedule.cost import Cost
from recpipe.schedule.families.base import Request, act, linear, one_step
from recpipe.schedule.ir import Action, Op, Program

MAX_ACTIONS = 27
"""Largest case searched: three ranks, three microbatches, F, I and W."""

_OPS = (Op.F, Op.I, Op.W)
_T = TypeVar("_T")


@dataclass(frozen=True)
class _State:
    """A partial schedule.

    Args:
        done: per rank, how many F, I and W are placed.
        free: per rank, when it is free.
        arrived: per rank, arrival times of forward inputs and of gradients, in microbatch order.
        wires: per rank, when its outgoing activation and gradient channels are free.
        orders: per rank, the ops placed.
    """

    done: tuple[tuple[int, int, int], ...]
    free: tuple[float, ...]
    arrived: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    wires: tuple[tuple[float, float], ...]
    orders: tuple[tuple[Op, ...], ...]


def is_small(request: Request) -> bool:
    """Whether `best_order` is willing to search."""
    return 3 * request.ranks * request.microbatches <= MAX_ACTIONS


def best_order(request: Request, tails: list[float]) -> Program:
    """An order of smallest makespan with stage s on rank s.

    Args:
        tails: per rank, the time from its last W to the end of its step.
    """
    search = _Search(request, tails)
    search.run(search.start())
    orders = [[*_numbered(rank, word)] for rank, word in enumerate(search.best_orders)]
    return one_step("searched", linear(request.ranks), request.microbatches, orders)


def _numbered(rank: int, word: tuple[Op, ...]) -> list[Action]:
    return [act(op, rank, word[:k].count(op)) for k, op in enumerate(word)]


class _Search:
    """Depth first, with the best found so far and the states already seen."""

    def __init__(self, request: Request, tails: list[float]) -> None:
        self.ranks, self.total = request.ranks, request.microbatches
        self.live = self.total if request.memory is None else max(1, int(request.memory))
        self.tails = tails
        cost, p = request.cost, request.ranks
        self.length = [[cost.compute(op, rank, p, p) for op in _OPS] for rank in range(p)]
        self.wire, self.delay = _links(cost, p)
        self.best = float("inf")
        self.best_orders: tuple[tuple[Op, ...], ...] = ()
        self.seen: dict[tuple[tuple[int, int, int], ...], list[tuple[float, ...]]] = {}

    def start(self) -> _State:
        p = self.ranks
        inputs = [((0.0,) * self.total if rank == 0 else (), ()) for rank in range(p)]
        return _State(((0, 0, 0),) * p, (0.0,) * p, tuple(inputs), ((0.0, 0.0),) * p, ((),) * p)

    def run(self, state: _State) -> None:
        if self._bound(state) >= self.best - 1e-9 or self._is_dominated(state):
            return
        options = self._options(state)
        if not options:
            self.best = max(free + tail for free, tail in zip(state.free, self.tails, strict=True))
            self.best_orders = state.orders
            return
        _, rank = min((begin + self.length[rank][op], rank) for begin, rank, op in options)
        first_end = min(begin + self.length[r][op] for begin, r, op in options if r == rank)
        for begin, r, op in sorted(options):
            if r == rank and (begin < first_end or begin + self.length[r][op] <= first_end):
                self.run(self._after(state, rank, op, begin))

    def _options(self, state: _State) -> list[tuple[float, int, int]]:
        """(earliest start, rank, op index) of everything that could come next."""
        found = []
        for rank in range(self.ranks):
            done, free = state.done[rank], state.free[rank]
            for op in (0, 1):
                arrived = state.arrived[rank][op]
                room = op == 1 or done[0] - done[2] < self.live
                if done[op] < len(arrived) and room:
                    found.append((max(free, arrived[done[op]]), rank, op))
            if done[2] < done[1]:
                found.append((free, rank, 2))
        return found

    def _after(self, state: _State, rank: int, op: int, begin: float) -> _State:
        end = begin + self.length[rank][op]
        counts = tuple(n + (k == op) for k, n in enumerate(state.done[rank]))
        done = _put(state.done, rank, (counts[0], counts[1], counts[2]))
        orders = _put(state.orders, rank, (*state.orders[rank], _OPS[op]))
        arrived, wires = self._deliver(state, rank, op, end)
        return _State(done, _put(state.free, rank, end), arrived, wires, orders)

    def _deliver(
        self, state: _State, rank: int, op: int, end: float
    ) -> tuple[tuple[tuple[tuple[float, ...], tuple[float, ...]], ...], tuple[tuple[float, float], ...]]:
        """Hand the result to the rank that needs it."""
        arrived, wires = state.arrived, state.wires
        if op == 2 or (op == 1 and rank == 0):
            return arrived, wires
        if op == 0 and rank == self.ranks - 1:
            forward, gradient = arrived[rank]
            return _put(arrived, rank, (forward, (*gradient, end))), wires
        link = rank if op == 0 else rank - 1
        sent = max(end, wires[rank][op])
        at = sent + self.wire[link] + self.delay[link]
        used = sent + self.wire[link]
        wires = _put(wires, rank, (used, wires[rank][1]) if op == 0 else (wires[rank][0], used))
        there = rank + 1 if op == 0 else rank - 1
        forward, gradient = arrived[there]
        new = ((*forward, at), gradient) if op == 0 else (forward, (*gradient, at))
        return _put(arrived, there, new), wires

    def _bound(self, state: _State) -> float:
        """Each rank still has its own work to do, from the moment it is free."""
        bound = 0.0
        for rank, length in enumerate(self.length):
            left = sum((self.total - n) * time for n, time in zip(state.done[rank], length, strict=True))
            bound = max(bound, state.free[rank] + left + self.tails[rank])
        return bound

    def _is_dominated(self, state: _State) -> bool:
        """Whether a state with the same work done was nowhere later; if not, remember this one."""
        pending = [t for rank, rows in enumerate(state.arrived) for op, row in enumerate(rows)
                   for t in row[state.done[rank][op]:]]
        times = (*state.free, *pending, *(t for pair in state.wires for t in pair))
        known = self.seen.setdefault(state.done, [])
        if any(all(a <= b for a, b in zip(old, times, strict=True)) for old in known):
            return True
        known.append(times)
        return False


def _links(cost: Cost, ranks: int) -> tuple[list[float], list[float]]:
    """Per link: how long a message occupies it, and how much later it arrives."""
    extra = [*cost.delay, *[0.0] * ranks]
    links = [cost.link(i, i + 1) for i in range(ranks - 1)]
    wire = [cost.activation_bytes / link.bandwidth for link in links]
    return wire, [link.alpha + extra[i] for i, link in enumerate(links)]


def _put(row: tuple[_T, ...], index: int, value: _T) -> tuple[_T, ...]:
    return (*row[:index], value, *row[index + 1 :])
