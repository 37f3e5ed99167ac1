"""Place gradient reductions and optimizers.

A stage is reduced right after its last weight gradient. All ranks reduce their stages in one global order, last stage
first, so that two groups that share ranks cannot wait for each other. Optimizers run at the end of the step: on a
synchronous host an earlier one would hold up compute until the reduction is through.
"""

from __future__ import annotations

from recpipe.schedule.ir import WHOLE_STEP, Action, Op, Program

_WEIGHTS = (Op.B, Op.W)


def add_updates(program: Program) -> Program:
    """Insert R where a stage has copies, and OPT, for every step."""
    late = program.lag > 0
    return program.with_orders([_rank(list(order), program, late) for order in program.orders])


def _rank(order: list[Action], program: Program, late: bool) -> list[Action]:
    done: list[Action] = []
    for step in range(program.steps):
        part = [action for action in order if action.step == step]
        waiting = _slots(order, step - 1) if late and step else []
        done += _late(part, waiting, program) if late else _step(part, _slots(order, step), program)
    if late:
        last = _slots(order, program.steps - 1)
        done += [one for slot in last for one in _updates(slot, program)]
    return done


def _slots(order: list[Action], step: int) -> list[Action]:
    """One OPT for each (replica, stage) that the rank trains in `step`, last stage first."""
    found = {(a.stage, a.replica) for a in order if a.step == step and a.op in _WEIGHTS}
    return [Action(Op.OPT, stage, WHOLE_STEP, k, step) for stage, k in sorted(found, reverse=True)]


def _updates(slot: Action, program: Program) -> list[Action]:
    return [slot._replace(op=Op.R), slot] if program.num_copies > 1 else [slot]


def _step(part: list[Action], slots: list[Action], program: Program) -> list[Action]:
    if program.num_copies == 1:
        return part + slots
    place = 0
    last = {(a.stage, a.replica): k for k, a in enumerate(part) if a.op in _WEIGHTS}
    at: dict[int, list[Action]] = {}
    for slot in slots:
        place = max(place, last[slot.stage, slot.replica])
        at.setdefault(place, []).append(slot._replace(op=Op.R))
    return [one for k, action in enumerate(part) for one in (action, *at.get(k, ()))] + slots


def _late(part: list[Action], waiting: list[Action], program: Program) -> list[Action]:
    """Updates of the step before, each after the same stage's backward of this step: weights are one update old."""
    due = {(slot.stage, slot.replica): slot for slot in waiting}
    done: list[Action] = []
    for action in part:
        done.append(action)
        key = (action.stage, action.replica)
        if action.op in _WEIGHTS and key in due:
            done += _updates(due.pop(key), program)
    return done
