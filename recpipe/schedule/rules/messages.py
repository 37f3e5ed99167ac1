"""V5 and V7: sends and receives pair up, and each channel keeps its order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from recpipe.schedule.deps import SENDS, Channel, is_message, sent_stage
from recpipe.schedule.ir import COMPUTE_OPS, Action, Op
from recpipe.schedule.rules.base import Context, Violation


def paired(context: Context) -> Iterator[Violation]:
    """V7: a boundary between ranks has one send and one receive each way; no other messages."""
    for rank, order in enumerate(context.program.orders):
        for action in order:
            if is_message(action.op):
                yield from _partner(context, rank, action)
            elif action.op in COMPUTE_OPS:
                yield from _sent(context, rank, action)


def _partner(context: Context, rank: int, action: Action) -> Iterator[Violation]:
    if not _crosses(context, action):
        yield Violation("V7", rank, action, None, "no boundary between ranks here")
        return
    for other in context.relation.members(action):
        if other not in context.spot:
            yield Violation("V7", rank, action, other, f"{other} is missing, {action} meets nobody")


def _crosses(context: Context, action: Action) -> bool:
    row, sender = context.place.ranks[action.replica], sent_stage(action)
    other = sender + (1 if action.op in (Op.SA, Op.RA) else -1)
    return 0 <= sender < len(row) and 0 <= other < len(row) and row[sender] != row[other]


def _sent(context: Context, rank: int, action: Action) -> Iterator[Violation]:
    """The result of a compute action leaves by a message when its reader is on another rank."""
    if action.op is Op.W:
        return
    send = action._replace(op=Op.SA if action.op is Op.F else Op.SG)
    if _crosses(context, send) and send not in context.spot:
        yield Violation("V7", rank, action, send, f"{send} is missing")


def channel_order(context: Context) -> Iterator[Violation]:
    """V5: in every channel messages are received in the order in which they are sent."""
    sent: dict[Channel, list[Action]] = {}
    received: dict[Channel, list[Action]] = {}
    for order in context.program.orders:
        for action in order:
            if is_message(action.op):
                side = sent if action.op in SENDS else received
                side.setdefault(context.relation.channel(action), []).append(action)
    for channel, messages in sent.items():
        for send, receive in zip_longest(messages, received.get(channel, [])):
            if send is None or receive is None or context.relation.join(send) != context.relation.join(receive):
                why = f"channel {channel}: {send} is sent where {receive} is received"
                yield Violation("V5", channel.target, send or receive, receive, why)
                break
