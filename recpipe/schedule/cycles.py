"""What a deadlock is: the shortest cycle of waits, written so that a person can follow it."""

from __future__ import annotations

from collections import defaultdict, deque

from recpipe.schedule.graph import Edge, Graph, edges
from recpipe.schedule.ir import Action

MAX_STARTS = 2000
"""Breadth-first searches made; a cycle among more nodes than this is still found, only perhaps not the shortest."""

_CLEAREST = ("needs", "start", "lane", "issue")
"""Where an action waits for another for several reasons, the first of these is shown."""


def shortest_cycle(graph: Graph) -> list[Edge]:
    """Edges of a shortest cycle in order, empty if there is none."""
    stuck = set(range(len(graph.actions))) - set(graph.sorted_nodes())
    best: list[int] = []
    for start in sorted(stuck)[:MAX_STARTS]:
        found = _cycle_through(graph, start, stuck, len(best))
        if found:
            best = found
    return _label(graph, best)


def _cycle_through(graph: Graph, start: int, stuck: set[int], limit: int) -> list[int]:
    """Shortest cycle through `start` that beats `limit` nodes (0: no limit)."""
    parent = {start: start}
    depth = {start: 1}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if limit and depth[node] >= limit:
            return []
        for head in graph.successors(node):
            if head == start:
                return _path(parent, start, node)
            if head in stuck and head not in parent:
                parent[head], depth[head] = node, depth[node] + 1
                queue.append(head)
    return []


def _path(parent: dict[int, int], start: int, node: int) -> list[int]:
    path = [node]
    while path[-1] != start:
        path.append(parent[path[-1]])
    return path[::-1]


def _label(graph: Graph, cycle: list[int]) -> list[Edge]:
    pairs = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    wanted = set(pairs)
    found: dict[tuple[int, int], list[Edge]] = defaultdict(list)
    for edge in edges(graph.relation, graph.host):
        key = (graph.node_of.get(edge[0], -1), graph.node_of[edge[1]])
        if key in wanted:
            found[key].append(edge)
    return [min(found[pair], key=lambda edge: _CLEAREST.index(edge[2])) for pair in pairs]


def describe(graph: Graph, cycle: list[Edge]) -> str:
    """One line an edge: who waits for whom, on which rank, and why."""
    why = {
        "needs": "needs the result of",
        "lane": "is behind, in its lane,",
        "issue": "is issued after",
        "start": "starts after",
    }
    lines = []
    for k, (source, target, kind) in enumerate(reversed(cycle)):
        rank = graph.relation.place.rank_of(target)
        lines.append(f"  {target} on rank {rank} {why[kind]} {source}{_meets(graph, cycle, k, source)}")
    return "\n".join(lines)


def _meets(graph: Graph, cycle: list[Edge], k: int, source: Action) -> str:
    """Name the other member when the cycle enters a join by one member and leaves it by another."""
    after = list(reversed(cycle))[(k + 1) % len(cycle)][1]
    if after == source:
        return ""
    return f", which meets {after}"
