"""V3 and V6: the table exchange is complete on every member, and all members issue collectives in one order."""

from __future__ import annotations

from collections.abc import Iterator

from recpipe.schedule.deps import COLLECTIVES
from recpipe.schedule.ir import EMBEDDING_OPS, STEP_OPS, WHOLE_STEP, Action, Op
from recpipe.schedule.rules.base import Context, Violation

_OWNER_OPS = frozenset({Op.EL, Op.EU, Op.PL, Op.DU})


def complete_chain(context: Context) -> Iterator[Violation]:
    """V3: on every member ED, one EO and one EG a microbatch, and on owners EL and EU; PO and PL, DG and DU on all or none."""
    place, relation = context.place, context.relation
    members, owners = frozenset(place.members), frozenset(place.tables)
    early = {action.step for action in context.spot if action.op in (Op.PO, Op.PL)}
    deferred = {action.step for action in context.spot if action.op in (Op.DG, Op.DU)}
    for rank in range(place.num_ranks):
        wanted = set(_wanted(context, early, deferred)) if rank in members else set()
        if rank not in owners:
            wanted = {action for action in wanted if action.op not in _OWNER_OPS}
        want = {relation.at(action, rank) for action in wanted}
        have = {action for action in context.program.orders[rank] if action.op in EMBEDDING_OPS}
        for missing in sorted(want - have):
            yield Violation("V3", rank, missing, _neighbour(have, missing), f"{missing} is missing on a member")
        for extra in sorted(have - want):
            yield Violation("V3", rank, extra, None, "has no part in the exchange of this program")


def _wanted(context: Context, early: set[int], deferred: set[int]) -> Iterator[Action]:
    for step in range(context.program.steps):
        ops = [Op.ED, Op.EL, Op.EU]
        ops += [Op.PL, Op.PO] if step in early else []
        ops += [Op.DG, Op.DU] if step in deferred else []
        yield from (Action(op, 0, WHOLE_STEP, 0, step) for op in ops)
        for microbatch in range(context.program.microbatches):
            yield Action(Op.EO, 0, microbatch, 0, step)
            yield Action(Op.EG, 0, microbatch, 0, step)


def _neighbour(have: set[Action], missing: Action) -> Action | None:
    """Some present action of the same exchange, to show beside a missing one."""
    same = [a for a in have if a.step == missing.step and a.microbatch in (missing.microbatch, WHOLE_STEP)]
    return min(same, default=None)


def same_order(context: Context) -> Iterator[Violation]:
    """V6: for each group, every member issues the collectives in the order of the first member."""
    first: dict[object, tuple[int, list[Action]]] = {}
    for rank, order in enumerate(context.program.orders):
        for group, mine in _groups(order).items():
            leader, theirs = first.setdefault(group, (rank, mine))
            for here, there in zip(mine, theirs, strict=False):
                if _key(here) != _key(there):
                    why = f"rank {rank} issues {here} where rank {leader} issues {there}: collectives of one group differ"
                    yield Violation("V6", rank, here, there, why)
                    break


def _groups(order: tuple[Action, ...]) -> dict[object, list[Action]]:
    """Collectives of one rank by group: all members of the exchange are one, the copies of a stage another."""
    found: dict[object, list[Action]] = {}
    for action in order:
        if action.op in COLLECTIVES:
            found.setdefault(action.stage if action.op is Op.R else "exchange", []).append(action)
    return found


def _key(action: Action) -> tuple[object, ...]:
    number = WHOLE_STEP if action.op in STEP_OPS else action.microbatch
    return action.op, number, action.step
