"""What a rule is: a function from a `Context` to the violations it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recpipe.schedule.deps import Relation, is_message
from recpipe.schedule.ir import COMPUTE_OPS, EMBEDDING_OPS, Action, Op, Program


@dataclass(frozen=True)
class Violation:
    """One broken rule.

    Args:
        rule: number, ``V1`` to ``V12``.
        rank: rank inside the lane.
        first, second: the two actions that show it; `second` is None where the fault has only one.
        why: the rest of the sentence.
    """

    rule: str
    rank: int
    first: Action
    second: Action | None
    why: str

    def __str__(self) -> str:
        pair = f"{self.first}" if self.second is None else f"{self.first} and {self.second}"
        return f"{self.rule} on rank {self.rank}, {pair}: {self.why}"


class Context:
    """A program with what every rule looks up.

    Attributes:
        misplaced: (rank, action) pairs that are there before, or on a rank that does not run their stage.
        spot: position of each action in the order of its rank (the first, if it is there twice).
        bound: most activations a rank may hold, in full shares; None for no bound.
    """

    def __init__(self, program: Program, bound: float | None) -> None:
        self.program, self.bound = program, bound
        self.place = program.placement
        self.relation = Relation(program)
        self.spot: dict[Action, int] = {}
        self.misplaced: list[tuple[int, Action]] = []
        for rank, order in enumerate(program.orders):
            slots = frozenset(self.place.slots[rank])
            for k, action in enumerate(order):
                if self.spot.setdefault(action, k) != k or (action.replica, action.stage) not in slots:
                    self.misplaced.append((rank, action))

    def before(self, first: Action, second: Action) -> bool:
        """Whether `first` is issued before `second`; both must be present and on one rank."""
        return self.spot[first] < self.spot[second]


Rule = Callable[[Context], Iterator[Violation]]


def in_range(program: Program, action: Action) -> bool:
    """Whether stage, replica, microbatch and step exist in `program`."""
    place = program.placement
    return (
        0 <= action.replica < place.num_replicas
        and 0 <= action.stage < place.num_stages
        and action.microbatch < program.microbatches
        and 0 <= action.step < program.steps
    )


def family_rule(op: Op) -> str:
    """The rule that owns completeness of `op`."""
    if op in COMPUTE_OPS:
        return "V1"
    if op in EMBEDDING_OPS:
        return "V3"
    return "V7" if is_message(op) else "V10"
