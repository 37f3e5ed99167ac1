"""V1 and V2: every microbatch is computed once, on its owner, and every result exists before it is read."""

from __future__ import annotations

from collections.abc import Iterator

from recpipe.schedule.deps import is_message
from recpipe.schedule.ir import COMPUTE_OPS, EMBEDDING_OPS, Action, Op
from recpipe.schedule.rules.base import Context, Violation, family_rule, in_range


def once_on_owner(context: Context) -> Iterator[Violation]:
    """Every action exists in the program's ranges, once, on its rank. Reported under the rule that owns the op."""
    for rank, order in enumerate(context.program.orders):
        for action in order:
            if action.microbatch >= context.program.microbatches or not 0 <= action.step < context.program.steps:
                yield Violation(family_rule(action.op), rank, action, None, "no such microbatch or step")
    for rank, action in context.misplaced:
        if not in_range(context.program, action):
            yield Violation(family_rule(action.op), rank, action, None, "no such stage or replica")
            continue
        owner = context.place.rank_of(action)
        why = f"belongs to rank {owner}" if owner != rank else "is issued twice"
        yield Violation(family_rule(action.op), rank, action, action, why)


def one_forward_one_backward(context: Context) -> Iterator[Violation]:
    """V1: one F, and one B or one I with one W, for every replica, stage, microbatch and step."""
    program, spot = context.program, context.spot
    for replica, row in enumerate(context.place.ranks):
        for stage, rank in enumerate(row):
            for step in range(program.steps):
                for microbatch in range(program.microbatches):
                    forward = Action(Op.F, stage, microbatch, replica, step)
                    yield from _complete(forward, spot, rank)


def _complete(forward: Action, spot: dict[Action, int], rank: int) -> Iterator[Violation]:
    whole, half, weight = (forward._replace(op=op) for op in (Op.B, Op.I, Op.W))
    has = [action in spot for action in (whole, half, weight)]
    partner = whole if has[0] else half
    if forward not in spot:
        yield Violation("V1", rank, forward, partner, "the forward is missing")
    elif has[0] and (has[1] or has[2]):
        yield Violation("V1", rank, whole, half if has[1] else weight, "backward is there both whole and split")
    elif not has[0] and has[1] != has[2]:
        missing = weight if has[1] else half
        yield Violation("V1", rank, missing, half if has[1] else weight, f"{missing} is missing")
    elif not any(has):
        yield Violation("V1", rank, forward, whole, "the backward is missing")


def results_first(context: Context) -> Iterator[Violation]:
    """V2, V3, V7: an action is issued after the actions whose result it reads: F before its B or I, I before its W, the
    embedding chain in order and rows before the forward that reads them, sends after and receives before compute.
    """
    spot, producers = context.spot, context.relation.producers
    for rank, order in enumerate(context.program.orders):
        for k, action in enumerate(order):
            if action.op is Op.R or action.op is Op.OPT:
                continue
            for producer in producers(action):
                if spot.get(producer, k) >= k:
                    yield Violation(_pair_rule(producer, action), rank, producer, action, _needs(context, producer, action))


def _pair_rule(producer: Action, action: Action) -> str:
    if producer.op in EMBEDDING_OPS or action.op in EMBEDDING_OPS:
        return "V3"
    return "V7" if is_message(producer.op) or is_message(action.op) else "V2"


def _needs(context: Context, producer: Action, action: Action) -> str:
    if producer not in context.spot:
        return f"{action} needs {producer}, which is missing"
    return f"{action} needs the result of {producer} first"


def fused_blocks(context: Context) -> Iterator[Violation]:
    """V2: a fused forward is followed, as the next compute action of its rank, by a backward."""
    for forward in sorted(context.program.fused):
        order = context.program.orders[context.place.rank_of(forward)] if forward in context.spot else ()
        after = order[context.spot[forward] + 1 :] if order else ()
        other = next((action for action in after if action.op in COMPUTE_OPS), None)
        if other is None or other.op not in (Op.B, Op.I):
            rank = context.place.rank_of(forward)
            yield Violation("V2", rank, forward, other, f"{forward} is fused but no backward follows it")
