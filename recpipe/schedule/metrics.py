"""Numbers of a schedule: bubble, activations, copies, bytes, and how much of every exchange is exposed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from recpipe.schedule.cost import Cost, Durations
from recpipe.schedule.deps import COLLECTIVES, SENDS, Relation
from recpipe.schedule.ir import Op, Program
from recpipe.schedule.timeline import Event, Timeline


@dataclass(frozen=True)
class RankMetrics:
    """One rank.

    Args:
        busy: compute time.
        window: idle time between its first and its last compute action that takes time.
        flush: makespan minus compute time.
        peak_activations: microbatch activations held at once, in full shares of a rank.
    """

    busy: float
    window: float
    flush: float
    peak_activations: float


@dataclass(frozen=True)
class ExchangeMetrics:
    """One kind of communication, summed over ranks: on its way, under compute (hidden), and not (exposed).

    Messages count at the sender, reductions at every member, table exchanges at the ranks that run a first stage: the
    others take part in their bubbles without waiting.
    """

    total: float
    hidden: float
    exposed: float


@dataclass(frozen=True)
class Metrics:
    """Everything `simulation.json` holds.

    Args:
        makespan: first start to last end.
        bubble_ratio: mean flush bubble over the makespan.
        weight_copies: copies of a stage inside one lane.
        bytes_per_link: point to point, ``"0>1 activation"`` to bytes, all steps.
        collective_bytes: op to bytes at one consumer (rows, gradients) or one rank (reduction), all steps.
        exchange: op to times.
    """

    makespan: float
    bubble_ratio: float
    ranks: tuple[RankMetrics, ...]
    weight_copies: int
    bytes_per_link: dict[str, float]
    collective_bytes: dict[str, float]
    exchange: dict[str, ExchangeMetrics]

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def measure(program: Program, timeline: Timeline, cost: Cost) -> Metrics:
    """All metrics of `program` as it ran in `timeline`."""
    ranks = tuple(_rank(program, timeline, rank) for rank in range(timeline.num_ranks))
    span = timeline.makespan
    ratio = sum(rank.flush for rank in ranks) / (span * len(ranks)) if span else 0.0
    links, collectives = _bytes(program, cost)
    copies = program.placement.num_replicas
    return Metrics(span, ratio, ranks, copies, links, collectives, _exchange(program, timeline))


def _rank(program: Program, timeline: Timeline, rank: int) -> RankMetrics:
    row = [event for event in timeline.compute(rank) if event.end > event.start]
    busy = sum(event.end - event.start for event in row)
    window = max(e.end for e in row) - min(e.start for e in row) - busy if row else 0.0
    peak = max_live(program, rank % program.placement.num_ranks)  # a timeline may show every lane
    return RankMetrics(busy, max(0.0, window), max(0.0, timeline.makespan - busy), peak)


def max_live(program: Program, rank: int) -> float:
    """Most activations that `rank` holds at once, in microbatches of its full share.

    A forward takes one chunk, its B or W gives it back; the compute lane runs in issue order, so no times are needed.
    """
    live = peak = 0
    for action in program.orders[rank]:
        if action.op is Op.F:
            live += 1
            peak = max(peak, live)
        elif action.op in (Op.B, Op.W):
            live -= 1
    return peak * program.placement.chunk


def _bytes(program: Program, cost: Cost) -> tuple[dict[str, float], dict[str, float]]:
    durations, relation = Durations(program, cost), Relation(program)
    links: dict[str, float] = defaultdict(float)
    collectives: dict[str, float] = defaultdict(float)
    counted: set[object] = set()
    for order in program.orders:
        for action in order:
            if action.op in SENDS:
                links[str(relation.channel(action))] += durations.num_bytes(action)
            elif action.op in COLLECTIVES and relation.join(action) not in counted:
                counted.add(relation.join(action))
                collectives[action.op.value] += durations.num_bytes(action)
    return dict(sorted(links.items())), dict(sorted(collectives.items()))


def _exchange(program: Program, timeline: Timeline) -> dict[str, ExchangeMetrics]:
    place = program.placement
    total: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    for rank in range(timeline.num_ranks):
        row = timeline.by_rank[rank]
        compute = _merged((e.start, e.end) for e in row if e.lane == "compute")
        consumes = rank % place.num_ranks in place.consumers
        lanes = ("send", "reduce", "embedding") if consumes else ("send", "reduce")
        for event, under in _covered([e for e in row if e.lane in lanes], compute):
            total[event.action.op.value] += event.end - event.start
            hidden[event.action.op.value] += under
    return {op: ExchangeMetrics(total[op], hidden[op], total[op] - hidden[op]) for op in sorted(total)}


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted, disjoint, non-empty spans."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _covered(events: list[Event], spans: list[tuple[float, float]]) -> Iterable[tuple[Event, float]]:
    """Each event with how long it runs under one of `spans`."""
    first = 0
    for event in sorted(events, key=lambda e: e.start):
        while first < len(spans) and spans[first][1] <= event.start:
            first += 1
        under, k = 0.0, first
        while k < len(spans) and spans[k][0] < event.end:
            under += min(event.end, spans[k][1]) - max(event.start, spans[k][0])
            k += 1
        yield event, under


def live_at(timeline: Timeline, moment: float) -> int:
    """Stage activations that all ranks hold together at `moment`: forward begun, B or W not ended."""
    begun = sum(e.action.op is Op.F and e.start <= moment for e in timeline.events)
    ended = sum(e.action.op in (Op.B, Op.W) and e.end <= moment for e in timeline.events)
    return begun - ended
