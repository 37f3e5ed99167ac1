"""What a first stage does not wait for: the end of a forward or backward before an exchange leaves, rows before it begins.

A forward starts without its rows and waits for them at the first block that reads any; the blocks before that (a bottom
tower) are work *beside the rows*. What stands right behind a forward leaves as soon as that has its rows, row gradients
leave as soon as a backward has made them, before it goes back through the blocks beside the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from recpipe.schedule.deps import Relation
from recpipe.schedule.ir import WHOLE_STEP, Action, Op

_FOLLOW = {Op.F: frozenset({Op.DG, Op.PL, Op.PO}), Op.B: frozenset({Op.EG})}


class Part(NamedTuple):
    """A part of a forward or backward of a first stage: that beside the rows, or the rest."""

    action: Action
    beside: bool


def followers(order: Sequence[Action]) -> Iterator[tuple[Action, list[Action]]]:
    """Each F and B of a first stage with what follows it at once and need not wait for its end; often nothing."""
    for k, action in enumerate(order):
        if action.op in _FOLLOW and action.stage == 0:
            yield action, list(takewhile(partial(_may_follow, action), order[k + 1 : k + 1 + len(_FOLLOW[action.op])]))


def _may_follow(action: Action, other: Action) -> bool:
    return other.op in _FOLLOW[action.op] and other.microbatch in (action.microbatch, WHOLE_STEP)


def overlaps(relation: Relation) -> dict[tuple[Action, Action], Part]:
    """For pairs of which the second waits for the first: the part of a compute action that is still to come, or already
    done, when the second may start. It starts by so much before the end of the first.
    """
    found: dict[tuple[Action, Action], Part] = {}
    for order in relation.program.orders:
        for action, behind in followers(order):
            if action.op is Op.F:
                found |= {(rows, action): Part(action, True) for rows in relation.producers(action)}
            last = action
            for other in behind:
                if other.op is Op.PL:
                    last = other
                else:
                    found[last, other] = Part(action, action.op is Op.B)
    return found
