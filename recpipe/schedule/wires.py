"""Messages that share a rank's link: each rank sends one after the other, in the order in which they become ready.

Without it every message has its link to itself (`Cost.shared` false), which is right where compute bounds the step and
too hopeful where the network does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from recpipe.schedule.cost import Durations, Link
from recpipe.schedule.deps import is_communication
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Op


class Wires:
    """What each rank has to send for a message or collective. Lanes are written out: ranks are global.

    Args:
        durations: sizes and links.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations, self._place = durations, durations.place
        self._owners = self._place.tables

    def sends(self, action: Action) -> dict[int, float]:
        """Bytes that each rank puts on its link; ranks that send nothing are left out."""
        size = self._durations.num_bytes(action)
        if action.op in (Op.SA, Op.SG):
            return {self._place.rank_of(action): size}
        if action.op is Op.R:
            ranks = {row[action.stage] for row in self._place.ranks}
            return dict.fromkeys(ranks, size)
        consumers, owned = self._place.consumers, 1 / max(len(self._owners), 1)
        if action.op in (Op.PO, Op.EO):
            found = {rank: size * owned * sum(c != rank for c in consumers) for rank in self._owners}
        elif action.op in (Op.EG, Op.DG):
            found = {rank: size * (1 - owned * (rank in self._owners)) for rank in consumers}
        else:
            found = {}
        return {rank: number for rank, number in found.items() if number > 0}

    def link(self, action: Action) -> Link:
        """The link that it goes over."""
        cost, last = self._durations.cost, self._durations.program.num_ranks - 1
        if action.op in (Op.SA, Op.SG):
            ahead = 1 if action.op is Op.SA else -1
            return cost.link(self._place.rank_of(action), self._place.ranks[action.replica][action.stage + ahead])
        chosen = cost.reduction if action.op is Op.R else cost.exchange
        return chosen or cost.link(0, last)

    def hops(self, action: Action) -> int:
        """Latencies that it takes one after the other: a ring reduction goes round twice."""
        return 2 * (self._durations.program.num_copies - 1) if action.op is Op.R else 1


def times_on_wires(graph: Graph, durations: Durations) -> tuple[list[float], list[float]]:
    """Start and end of every node. Nodes are taken in the order in which they become ready, so that links serve first come."""
    wires, free = Wires(durations), dict[int, float]()
    ready, left = [0.0] * len(graph.actions), list(graph.indegree)
    start, end = list(ready), list(ready)
    waiting = [(0.0, node) for node, count in enumerate(left) if count == 0]
    while waiting:
        moment, node = heapq.heappop(waiting)
        action = graph.actions[node]
        if is_communication(action.op) and action.op is not Op.ED:
            start[node], sent, end[node] = _send(_sender(action), moment, wires, free)
        else:
            start[node], sent = moment, moment + durations.node(action)
            end[node] = sent
        for head, done in _released(graph, durations, node, end[node], sent):
            ready[head] = max(ready[head], done)
            left[head] -= 1
            if left[head] == 0:
                heapq.heappush(waiting, (ready[head], head))
    return start, end


def _released(graph: Graph, durations: Durations, node: int, end: float, sent: float) -> Iterator[tuple[int, float]]:
    """What waits for `node`, and until when."""
    yield from ((head, end) for head in graph.next[node])
    yield from ((head, sent) for head in graph.behind[node])
    yield from ((head, end - durations.part(part)) for head, part in graph.inside[node])


def _sender(action: Action) -> Action:
    """The sending end of a message, whichever end stands for its node."""
    if action.op is Op.RA:
        return action._replace(op=Op.SA, stage=action.stage - 1)
    return action._replace(op=Op.SG, stage=action.stage + 1) if action.op is Op.RG else action


def _send(action: Action, moment: float, wires: Wires, free: dict[int, float]) -> tuple[float, float, float]:
    """Start, when its last byte has left, and when it has arrived."""
    link, sends = wires.link(action), wires.sends(action)
    begins = {rank: max(moment, free.get(rank, 0.0)) for rank in sends}
    for rank, size in sends.items():
        free[rank] = begins[rank] + size / link.bandwidth
    sent = max((free[rank] for rank in sends), default=moment)
    return min(begins.values(), default=moment), sent, sent + link.alpha * wires.hops(action)
