"""Each rule by its number: one planted fault that only it can name, and the message a user reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from recpipe.errors import ScheduleError
from recpipe.schedule.check import check, violations
from recpipe.schedule.cycles import shortest_cycle
from recpipe.schedule.deps import Relation
from recpipe.schedule.graph import Graph
from recpipe.schedule.ir import Action, Program
from recpipe.schedule.text import parse_action
from tests.schedule.cases import program

Edit = Callable[[list[list[Action]]], None]


def planted(made: Program, edit: Edit) -> Program:
    orders = [list(order) for order in made.orders]
    edit(orders)
    return made.with_orders(orders)


def at(orders: list[list[Action]], rank: int, text: str) -> int:
    return orders[rank].index(parse_action(text))


def drop(rank: int, text: str) -> Edit:
    return lambda orders: orders[rank].remove(parse_action(text))


def put(rank: int, text: str, before: str | None) -> Edit:
    """Move `text` (from wherever it is) on `rank` to just before `before`, or to the end."""

    def edit(orders: list[list[Action]]) -> None:
        action = parse_action(text)
        for order in orders:
            if action in order:
                order.remove(action)
        orders[rank].insert(at(orders, rank, before) if before else len(orders[rank]), action)

    return edit


def swap(rank: int, one: str, two: str) -> Edit:
    def edit(orders: list[list[Action]]) -> None:
        i, j = at(orders, rank, one), at(orders, rank, two)
        orders[rank][i], orders[rank][j] = orders[rank][j], orders[rank][i]

    return edit


def both(*edits: Edit) -> Edit:
    return lambda orders: [edit(orders) for edit in edits] and None


CASES: list[tuple[str, str, str, Edit, int, tuple[str, str | None]]] = [
    ("V1", "1f1b", "none", drop(1, "B1.2"), 1, ("F1.2", "B1.2")),
    ("V1", "zb_h1", "none", drop(0, "W0.1"), 0, ("W0.1", "I0.1")),
    ("V1", "1f1b", "none", put(0, "F1.0", None), 0, ("F1.0", "F1.0")),
    ("V2", "1f1b", "none", swap(1, "F1.0", "B1.0"), 1, ("F1.0", "B1.0")),
    ("V2", "zb_h1", "none", swap(0, "I0.0", "W0.0"), 0, ("I0.0", "W0.0")),
    ("V3", "1f1b", "step", drop(1, "EG1.0"), 1, ("EG1.0", "ED1")),
    ("V3", "1f1b", "step", put(0, "EO0.0", "B0.0"), 0, ("EO0.0", "F0.0")),
    ("V5", "1f1b", "none", put(1, "RA1.2", "RA1.1"), 1, ("SA0.1", "RA1.2")),
    ("V6", "1f1b", "step", swap(1, "EO1.1", "EO1.2"), 1, ("EO1.2", "EO0.1")),
    ("V7", "1f1b", "none", drop(0, "SA0.3"), 0, ("F0.3", "SA0.3")),
    ("V7", "1f1b", "none", drop(0, "RG0.1"), 1, ("SG1.1", "RG0.1")),
    ("V7", "1f1b", "none", put(0, "SA0.1", "F0.1"), 0, ("F0.1", "SA0.1")),
    ("V8", "1f1b", "steps", put(0, "OPT0", None), 0, ("1:F0.0", "OPT0")),
    ("V9", "1f1b", "step", put(0, "EU0", None), 0, ("1:EL0", "EU0")),
    ("V3", "1f1b", "spread", drop(0, "DU0"), 0, ("DU0", "DG0")),
    ("V3", "1f1b", "spread", both(drop(1, "DG1"), drop(1, "DU1")), 1, ("DG1", "ED1")),
    ("V3", "1f1b", "spread", put(0, "DU0", "DG0"), 0, ("DG0", "DU0")),
    ("V9", "1f1b", "spread", put(0, "DU0", "2:EO0.0"), 0, ("2:PL0", "DU0")),
    ("V9", "1f1b", "spread", put(0, "DU0", "2:EO0.0"), 0, ("2:EL0", "DU0")),
    ("V10", "1f1b", "steps", put(0, "OPT0", "B0.3"), 0, ("B0.3", "OPT0")),
    ("V10", "chimera", "none", put(0, "R0", "B0.0"), 0, ("B0.0", "R0")),
    ("V12", "1f1b", "steps", put(1, "SG1.3", "1:F1.0"), 1, ("OPT1", "SG1.3")),
]


@pytest.mark.parametrize(("rule", "name", "mode", "edit", "rank", "actions"), CASES)
def test_rule(rule: str, name: str, mode: str, edit: Edit, rank: int, actions: tuple[str, str]) -> None:
    exchange, steps = ("none", 2) if mode == "steps" else (mode, {"none": 1, "spread": 3}.get(mode, 2))
    made = program(name, exchange, steps=steps)
    check(made)
    broken = planted(made, edit)
    found = [(one.rule, one.rank, str(one.first), str(one.second)) for one in violations(broken)]
    assert (rule, rank, *actions) in found
    with pytest.raises(ScheduleError, match=rf"breaks {rule}:\n  {rule} on rank \d+, .* and "):
        check(broken)


def test_memory() -> None:
    """V11."""
    made = program("gpipe", ranks=2, microbatches=4)
    check(made, bound=4)
    with pytest.raises(ScheduleError, match=r"V11 on rank 0, F0.0 and F0.3: holds 4 activations, 3 allowed"):
        check(made, bound=3)


def test_lag_allows_what_it_names() -> None:
    """V8 with a policy: cyclic passes with the lag it declares and fails without."""
    made = program("cyclic", steps=3)
    assert check(made).weight_lag == 1 and not check(made).exact
    with pytest.raises(ScheduleError, match=r"V8 on rank 0, 1:F0.0 and OPT0: .* lag 0 allowed"):
        check(replace(made, lag=0))


def test_backward_must_see_the_weights_of_its_forward() -> None:
    made = program("cyclic", steps=2)
    broken = planted(made, both(put(0, "R1", "1:B1.0"), put(0, "OPT1", "1:B1.0")))
    assert ("V8", "1:F1.0", "1:B1.0") in [(v.rule, str(v.first), str(v.second)) for v in violations(broken)]


def crossed() -> Program:
    """Rank 0 runs B0.0 before F0.1, rank 1 runs F1.1 before B1.0: each waits for the other's message."""
    made = program("1f1b", ranks=2, microbatches=2)
    texts = [
        "F0.0 SA0.0 RG0.0 B0.0 F0.1 SA0.1 RG0.1 B0.1 OPT0",
        "RA1.0 RA1.1 F1.0 F1.1 B1.0 SG1.0 B1.1 SG1.1 OPT1",
    ]
    return made.with_orders([[parse_action(word) for word in text.split()] for text in texts])


def test_deadlock_prints_its_shortest_cycle() -> None:
    """V4."""
    (found,) = violations(crossed())
    assert found.rule == "V4"
    lines = found.why.splitlines()[1:]
    assert lines == [
        "  SG1.0 on rank 1 needs the result of B1.0",
        "  B1.0 on rank 1 is behind, in its lane, F1.1",
        "  F1.1 on rank 1 needs the result of RA1.1, which meets SA0.1",
        "  SA0.1 on rank 0 needs the result of F0.1",
        "  F0.1 on rank 0 is behind, in its lane, B0.0",
        "  B0.0 on rank 0 needs the result of RG0.0, which meets SG1.0",
    ]


def test_cycle_is_a_shortest_one() -> None:
    """Against a plain search over all nodes of the same graph."""
    graph = Graph(Relation(crossed()), "sync")
    size = len(graph.actions)
    reach = {node: {node: 0} for node in range(size)}
    shortest = size + 1
    for node, seen in reach.items():
        frontier = [node]
        while frontier:
            after = []
            for one in frontier:
                for head in graph.successors(one):
                    if head == node:
                        shortest = min(shortest, seen[one] + 1)
                    if head not in seen:
                        seen[head] = seen[one] + 1
                        after.append(head)
            frontier = after
    assert len(shortest_cycle(graph)) == shortest
