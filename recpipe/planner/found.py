"""What a search gives: rated designs, and how sure it is of the best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recpipe.planner.assign import Assignment
from recpipe.planner.designs import Choice, Design


@dataclass(frozen=True)
class Rated:
    """A design with its best known tables.

    Args:
        design, assignment: None where the family refused.
        choice: names.
        seed: where the tables came from: greedy, window, pooled, a name of the caller's, or searched.
        note: why it cannot be used, else empty.
    """

    choice: Choice
    design: Design | None
    assignment: Assignment | None
    seed: str = ""
    note: str = ""

    @property
    def step(self) -> float:
        return self.assignment.step if self.assignment else math.inf

    @property
    def score(self) -> tuple[float, float]:
        return self.assignment.score if self.assignment else (math.inf, math.inf)


@dataclass
class Found:
    """What a search gives.

    Args:
        best: the plan, or the attempt that misses fewest bytes.
        rated: every choice that was looked at, best first.
        named: for each seed of the caller, the best design for exactly those tables.
        bound: no plan with one of the designs that were simulated, or given up for their compute, is faster; milliseconds.
        proven: the best is as fast as any plan in the scope.
        looked: designs considered.
        timed_out: the time box ended the search.
        seconds: it took.
    """

    best: Rated
    rated: list[Rated]
    named: dict[str, Rated]
    bound: float
    proven: bool
    looked: int
    timed_out: bool
    seconds: float

    @property
    def fits(self) -> bool:
        return self.best.assignment is not None and self.best.assignment.shortfall == 0
