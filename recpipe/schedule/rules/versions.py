"""V8, V9, V10 and V12: which update every read sees, updates after their gradients, nothing left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from recpipe.schedule.ir import COMPUTE_OPS, WHOLE_STEP, Action, Op
from recpipe.schedule.rules.base import Context, Violation


def weight_lag(context: Context) -> int:
    """Most optimizer steps that the weights of a forward are behind."""
    lags = (a.step - count for _, a, count in _seen(context, Op.OPT) if a.op is Op.F)
    return max(0, max(lags, default=0))


def table_lag(context: Context) -> int:
    """Most table updates that a lookup is behind what exactness asks."""
    behind = (_behind(a, count) for _, a, count in _lookups(context))
    deferred = (a.step - 1 - update.step for _, a, update in _missed(context))
    return max(0, max(behind, default=0), max(deferred, default=0))


def weight_versions(context: Context) -> Iterator[Violation]:
    """V8: F and its backward see the same optimizer count, and F is at most `Program.lag` steps behind."""
    at_forward: dict[Action, int] = {}
    for rank, action, count in _seen(context, Op.OPT):
        forward = action._replace(op=Op.F)
        if action.op is Op.F:
            at_forward[action] = count
            update = action._replace(op=Op.OPT, microbatch=WHOLE_STEP, step=max(0, min(count, action.step - 1)))
            if not 0 <= action.step - count <= context.program.lag:
                why = f"{action} sees {count} updates of its stage, {action.step} are due, lag {context.program.lag} allowed"
                yield Violation("V8", rank, action, update, why)
        elif forward in at_forward and at_forward[forward] != count:
            why = f"{forward} saw {at_forward[forward]} updates of its stage, {action} sees {count}"
            yield Violation("V8", rank, forward, action, why)


def _seen(context: Context, update: Op) -> Iterator[tuple[int, Action, int]]:
    """Every compute action with the number of updates of its own stage issued before it."""
    for rank, order in enumerate(context.program.orders):
        count: Counter[tuple[int, int]] = Counter()
        for action in order:
            key = (action.replica, action.stage)
            if action.op is update:
                count[key] += 1
            elif action.op in COMPUTE_OPS:
                yield rank, action, count[key]


def _lookups(context: Context) -> Iterator[tuple[int, Action, int]]:
    for rank, order in enumerate(context.program.orders):
        count = 0
        for action in order:
            count += action.op is Op.EU
            if action.op in (Op.EL, Op.PL):
                yield rank, action, count


def _behind(action: Action, count: int) -> int:
    """Early rows are untouched by the step before, so they may miss its update but no older one."""
    return action.step - count - (1 if action.op is Op.PL else 0)


def _missed(context: Context) -> Iterator[tuple[int, Action, Action]]:
    """(rank, lookup, update): deferred updates that a lookup should see and does not.

    Rows whose update is deferred are untouched by the next step, and may be read by the one after that.
    """
    for rank, order in enumerate(context.program.orders):
        waiting = {action for action in order if action.op is Op.DU}
        for action in order:
            waiting.discard(action)
            if action.op in (Op.EL, Op.PL):
                due = action.step - 1 - context.program.lag
                yield from ((rank, action, update) for update in sorted(waiting) if update.step < due)


def table_versions(context: Context) -> Iterator[Violation]:
    """V9: every lookup sees the updates of all earlier steps, up to `Program.lag`, and none of its own."""
    for rank, action, update in _missed(context):
        yield Violation("V9", rank, action, update, f"{action} does not see {update}, which must be before it")
    for rank, action, count in _lookups(context):
        late, early = _behind(action, count), count > action.step
        if late > context.program.lag or early:
            update = action._replace(op=Op.EU, step=action.step if early else count)
            why = f"{action} sees {count} table updates; {update} must be {'after' if early else 'before'} it"
            yield Violation("V9", rank, action, update, why)


def updates(context: Context) -> Iterator[Violation]:
    """V10: every stage copy has one OPT a step, with an R before it when there are copies, after all its gradients."""
    program, relation = context.program, context.relation
    for replica, row in enumerate(context.place.ranks):
        for stage, rank in enumerate(row):
            for step in range(program.steps):
                update = Action(Op.OPT, stage, WHOLE_STEP, replica, step)
                reduction = update._replace(op=Op.R)
                if not relation.reduces and reduction in context.spot:
                    yield Violation("V10", rank, reduction, update, "there is nothing to reduce over")
                for action in (reduction, update) if relation.reduces else (update,):
                    yield from _after(context, rank, action)


def _after(context: Context, rank: int, action: Action) -> Iterator[Violation]:
    for producer in context.relation.producers(action):
        if action not in context.spot or producer not in context.spot:
            missing = action if action not in context.spot else producer
            yield Violation("V10", rank, producer, action, f"{missing} is missing")
            return
        if not context.before(producer, action):
            yield Violation("V10", rank, producer, action, f"{action} is issued before {producer}")
            return


def empty_stores(context: Context) -> Iterator[Violation]:
    """V12: on every rank nothing of a step is issued after the last update of that step."""
    for rank, order in enumerate(context.program.orders):
        closing = {a.step: k for k, a in enumerate(order) if a.op in (Op.OPT, Op.EU, Op.DU)}
        for k, action in enumerate(order):
            last = closing.get(action.step, k)
            if k > last:
                yield Violation("V12", rank, order[last], action, f"step {action.step} has ended, {action} is left over")
