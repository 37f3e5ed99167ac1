"""The dependency relation of one program as a graph of small integers: one node for an action or for a whole join.

Only structure. Durations are in `simulate`, what a cycle means to a user is in `cycles`.
"""

from __future__ import annotations

from collections.abc import Iterator

from recpipe.schedule.deps import COMPUTE, Relation, is_communication, is_message
from recpipe.schedule.inside import Part, overlaps
from recpipe.schedule.ir import Action

Edge = tuple[Action, Action, str]
"""Source, target, and why the target waits: ``needs``, ``lane``, ``issue`` or ``start``."""


def edges(relation: Relation, host: str) -> Iterator[Edge]:
    """Everything an action waits for besides the other members of its join.

    Args:
        host: ``async`` issues at once; with ``sync`` an action is issued when the compute before it has ended.
    """
    for rank, order in enumerate(relation.program.orders):
        gate = relation.gate(rank)
        if gate is not None:
            yield *gate, "start"
        yield from _rank_edges(relation, order, host == "sync")


def _rank_edges(relation: Relation, order: tuple[Action, ...], waits: bool) -> Iterator[Edge]:
    last: dict[object, Action] = {}
    for action in order:
        lane = relation.lane(action)
        if lane in last:
            yield last[lane], action, "lane"
        if waits and COMPUTE in last and is_communication(action.op):
            yield last[COMPUTE], action, "issue"
        for producer in relation.producers(action):
            yield producer, action, "needs"
        last[lane] = action


class Graph:
    """Nodes and successor lists of a program.

    Attributes:
        node_of: node of each action; members of a join share one.
        actions: one action of each node.
        next: successors of each node that wait for its end.
        behind: successors that only wait for the channel to be free again.
        inside: successors that start before its end, each by what a part of a compute action takes.
        indegree: number of incoming edges of each node.
    """

    def __init__(self, relation: Relation, host: str, ordered: bool = True, overlapped: bool = False) -> None:
        """With `ordered` false only results matter, not lanes or issue order; `overlapped`: see `recpipe.schedule.inside`."""
        self.relation, self.host = relation, host
        self.node_of: dict[Action, int] = {}
        self.actions: list[Action] = []
        self._place_nodes()
        self.next: list[list[int]] = [[] for _ in self.actions]
        self.behind: list[list[int]] = [[] for _ in self.actions]
        self.inside: list[list[tuple[int, Part]]] = [[] for _ in self.actions]
        self.indegree = [0] * len(self.actions)
        node_of, parts = self.node_of, overlaps(relation) if overlapped else {}
        for source, target, kind in edges(relation, host):
            if source in node_of and (ordered or kind == "needs"):
                head = node_of[target]
                if kind == "lane" and node_of[source] == head and relation.is_block(source, target):
                    continue
                behind, part = kind == "lane" and is_message(target.op), parts.get((source, target))
                if part is not None:
                    self.inside[node_of[source]].append((head, part))
                else:
                    (self.behind if behind else self.next)[node_of[source]].append(head)
                self.indegree[head] += 1

    def _place_nodes(self) -> None:
        joins: dict[object, int] = {}
        for order in self.relation.program.orders:
            for action in order:
                key = self.relation.join(action)
                fresh = len(self.actions)
                node = fresh if key is None else joins.setdefault(key, fresh)
                if node == fresh:
                    self.actions.append(action)
                self.node_of[action] = node

    def successors(self, node: int) -> list[int]:
        """All nodes that wait for `node` in some way."""
        if not self.behind[node] and not self.inside[node]:
            return self.next[node]
        return [*self.next[node], *self.behind[node], *(head for head, _ in self.inside[node])]

    def sorted_nodes(self) -> list[int]:
        """Nodes in an order that respects every edge. Shorter than the graph when there is a cycle."""
        degree = list(self.indegree)
        order = [node for node, count in enumerate(degree) if count == 0]
        for node in order:
            for head in self.successors(node):
                degree[head] -= 1
                if degree[head] == 0:
                    order.append(head)
        return order
