"""Discrete events over the dependency graph: when everything runs, given a fixed order and fixed durations.

Lanes run in issue order and messages do not share bandwidth, so the first possible start of an action is the latest end
of what it waits for. One pass over the graph gives every time. With `Cost.shared` the links decide, too: see `wires`.
"""

from __future__ import annotations

from recpipe.errors import ScheduleError
from recpipe.schedule.cost import Cost, Durations
from recpipe.schedule.cycles import describe, shortest_cycle
from recpipe.schedule.deps import Relation
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.passes.lanes import expand
from recpipe.schedule.timeline import Event, Timeline, lane_name
from recpipe.schedule.wires import times_on_wires


def simulate(program: Program, cost: Cost, unit: str = "slot") -> Timeline:
    """Run `program` on paper.

    Identical lanes are folded: the result shows lane 0, which stands for all. When the lanes see different links they
    are written out first. Raises ScheduleError with the cycle if the program cannot finish.
    """
    if cost.shared or not cost.lanes_are_equal(program):
        program = expand(program)
    relation = Relation(program)
    graph = Graph(relation, cost.host, overlapped=cost.overlapped)
    order = graph.sorted_nodes()
    if len(order) < len(graph.actions):
        raise ScheduleError(f"{program.name} deadlocks:\n{describe(graph, shortest_cycle(graph))}")
    durations = Durations(program, cost)
    start, end = times_on_wires(graph, durations) if cost.shared else _times(graph, order, durations)
    events = _events(program, graph, start, end)
    if program.fused:
        events = _halves(events, relation, durations)
    return Timeline(events, len(program.orders), unit)


def _halves(events: tuple[Event, ...], relation: Relation, durations: Durations) -> tuple[Event, ...]:
    """Show the two actions of a fused block one after the other, each with its share of the block."""
    cut: dict[Action, float] = {}
    for event in events:
        backward = relation.block(event.action) if event.action in relation.program.fused else None
        if backward is not None:
            whole = durations.of(event.action) + durations.of(backward)
            part = durations.of(event.action) / whole if whole else 0.0
            cut[event.action] = cut[backward] = event.start + (event.end - event.start) * part
    return tuple(_half(event, cut[event.action]) if event.action in cut else event for event in events)


def _half(event: Event, moment: float) -> Event:
    return event._replace(end=moment) if event.action.op is Op.F else event._replace(start=moment)


def _times(graph: Graph, order: list[int], durations: Durations) -> tuple[list[float], list[float]]:
    start = [0.0] * len(graph.actions)
    end = list(start)
    for node in order:
        finish = end[node] = start[node] + durations.node(graph.actions[node])
        for head in graph.next[node]:
            start[head] = max(start[head], finish)
        for head, part in graph.inside[node]:
            start[head] = max(start[head], finish - durations.part(part))
        if graph.behind[node]:
            free = start[node] + durations.occupies(graph.actions[node])
            for head in graph.behind[node]:
                start[head] = max(start[head], free)
    return start, end


def _events(program: Program, graph: Graph, start: list[float], end: list[float]) -> tuple[Event, ...]:
    found = []
    for rank, order in enumerate(program.orders):
        for action in order:
            node = graph.node_of[action]
            found.append(Event(rank, lane_name(action), action, start[node], end[node]))
    return tuple(found)


def critical_path(program: Program, cost: Cost) -> float:
    """Longest chain of results, as if every rank had any number of lanes: no order can finish sooner."""
    relation = Relation(program)
    graph = Graph(relation, cost.host, ordered=False, overlapped=cost.overlapped)
    _, end = _times(graph, graph.sorted_nodes(), Durations(program, cost))
    return max(end, default=0.0)


def busiest_rank(program: Program, cost: Cost) -> float:
    """Compute time of the busiest rank: no order of the same placement can finish sooner."""
    durations = Durations(program, cost)
    return max(
        sum(durations.of(a) for a in order if lane_name(a) == "compute") for order in program.orders
    )
