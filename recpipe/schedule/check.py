"""The checker: proves a program free of deadlock and exact, or says which rule it breaks, where and with which actions.

V1 every (replica, stage, microbatch) has one F and one B or I + W, on its owner. V2 F before I or B, I before W. V3 the
embedding chain is complete and in order on every member. V4 no cycle of waits over order, results, joins and channels.
V5 each channel receives in the order it sends. V6 each group issues its collectives in one order. V7 sends and receives
pair up. V8 weight versions. V9 table versions. V10 R after the last weight gradient, OPT after R. V11 activations within
a bound. V12 nothing of a step is left after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from recpipe.errors import ScheduleError
from recpipe.schedule.cycles import describe, shortest_cycle
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Op, Program
from recpipe.schedule.metrics import max_live
from recpipe.schedule.rules import RULES
from recpipe.schedule.rules.base import Context, Violation
from recpipe.schedule.rules.versions import table_lag, weight_lag

SHOWN = 5
"""Violations printed before the rest is only counted as more."""


@dataclass(frozen=True)
class Proof:
    """What a check established: versions seen, and the most activations of any rank (full shares)."""

    weight_lag: int
    table_lag: int
    peak_activations: float

    @property
    def exact(self) -> bool:
        """Whether every read sees every earlier update."""
        return self.weight_lag == 0 and self.table_lag == 0


def check(program: Program, bound: float | None = None) -> Proof:
    """Check all rules.

    Deadlock is checked for a synchronous host, which waits for more than an asynchronous one.

    Args:
        bound: most activations a rank may hold, in full shares; None for no bound.

    Raises ScheduleError with the first few violations.
    """
    found = list(islice(violations(program, bound), SHOWN + 1))
    if found:
        more = "\n  and more" if len(found) > SHOWN else ""
        lines = "\n  ".join(str(violation) for violation in found[:SHOWN])
        raise ScheduleError(f"{program.name} breaks {found[0].rule}:\n  {lines}{more}")
    context = Context(program, bound)
    peak = max(max_live(program, rank) for rank in range(len(program.orders)))
    return Proof(weight_lag(context), table_lag(context), peak)


def violations(program: Program, bound: float | None = None) -> Iterator[Violation]:
    """Violations in the order of the rules. Stops after the first rule function that finds any."""
    context = Context(program, bound)
    for rule in (*RULES, within_memory, no_cycle):
        found = False
        for violation in rule(context):
            found = True
            yield violation
        if found:
            return


def within_memory(context: Context) -> Iterator[Violation]:
    """V11: no rank holds more activations than the bound."""
    if context.bound is None:
        return
    for rank, order in enumerate(context.program.orders):
        peak = max_live(context.program, rank)
        if peak > context.bound + 1e-9:
            first = next(action for action in order if action.op is Op.F)
            last = [action for action in order if action.op is Op.F][-1]
            yield Violation("V11", rank, first, last, f"holds {peak:g} activations, {context.bound:g} allowed")


def no_cycle(context: Context) -> Iterator[Violation]:
    """V4: something can always run."""
    graph = Graph(context.relation, "sync")
    if len(graph.sorted_nodes()) == len(graph.actions):
        return
    cycle = shortest_cycle(graph)
    source, target, _ = cycle[0]
    rank = context.place.rank_of(target)
    yield Violation("V4", rank, source, target, "deadlock, shortest cycle:\n" + describe(graph, cycle))
