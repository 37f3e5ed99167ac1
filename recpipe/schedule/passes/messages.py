"""Place sends and receives.

A send follows its producer. A receive is issued one compute action ahead of its consumer, so that a message travels
under that action even on a synchronous host. Inside a channel receives keep the order of the sends; where consumers
want another order, the earlier message is received earlier.
"""

from __future__ import annotations

from collections import defaultdict

from recpipe.schedule.deps import COMPUTE, RECEIVES, Channel, Relation
from recpipe.schedule.ir import Action, Op, Program


def add_messages(program: Program) -> Program:
    """Insert SA, RA, SG and RG wherever neighbouring stages live on different ranks."""
    relation = Relation(program)
    sends: dict[Channel, list[Action]] = defaultdict(list)
    orders = []
    for order in program.orders:
        grown: list[Action] = []
        held: list[Action] = []
        for action in order:
            grown.append(action)
            held += _sends(relation, action)
            if action in program.fused:  # both results of a block come at its end
                continue
            for send in held:
                grown.append(send)
                sends[relation.channel(send)].append(send)
            held = []
        orders.append(grown)
    needed = _receives_by_rank(relation, sends)
    return program.with_orders([_with_receives(relation, order, needed[r]) for r, order in enumerate(orders)])


def _sends(relation: Relation, action: Action) -> list[Action]:
    row = relation.place.ranks[action.replica]
    if action.op is Op.F and action.stage + 1 < len(row) and row[action.stage + 1] != row[action.stage]:
        return [action._replace(op=Op.SA)]
    if action.op in (Op.B, Op.I) and action.stage and row[action.stage - 1] != row[action.stage]:
        return [action._replace(op=Op.SG)]
    return []


def _receives_by_rank(
    relation: Relation, sends: dict[Channel, list[Action]]
) -> dict[int, dict[Channel, list[Action]]]:
    """For each rank and each incoming channel, receives in the order of the sends."""
    found: dict[int, dict[Channel, list[Action]]] = defaultdict(dict)
    for channel, messages in sends.items():
        receives = [next(a for a in relation.members(send) if a.op in RECEIVES) for send in messages]
        found[channel.target][channel] = receives
    return found


def _with_receives(relation: Relation, order: list[Action], incoming: dict[Channel, list[Action]]) -> list[Action]:
    compute = [k for k, action in enumerate(order) if relation.lane(action) == COMPUTE]
    ahead = _one_ahead(relation, order, compute)
    wanted = {producer: k for k in compute for producer in relation.producers(order[k])}
    at: dict[int, list[Action]] = defaultdict(list)
    for channel in sorted(incoming):
        place = len(order)
        for receive in reversed(incoming[channel]):
            consumer = wanted[receive]
            place = min(place, ahead[consumer])
            at[place].insert(0, receive)
    return [one for k, action in enumerate(order) for one in (*at[k], action)]


def _one_ahead(relation: Relation, order: list[Action], compute: list[int]) -> dict[int, int]:
    """For each compute action where its receive goes: before the compute block in front of its own block."""
    blocks: list[list[int]] = []
    for k in compute:
        if blocks and order[blocks[-1][-1]] in relation.program.fused:
            blocks[-1].append(k)
        else:
            blocks.append([k])
    previous = [blocks[0], *blocks] if blocks else []
    return {k: before[0] for before, block in zip(previous, blocks, strict=False) for k in block}
