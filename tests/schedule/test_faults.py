"""Planted faults: drop, duplicate, swap and move every kind of action on every family.

Each changed program is rejected with a rule, a rank and two actions, or a literal execution shows that it still computes
the numbers of a plain loop (`numeric`) and the simulator still finishes it. Drops and duplicates are never harmless.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from recpipe.errors import ScheduleError
from recpipe.schedule import check as checker
from recpipe.schedule.check import check, violations
from recpipe.schedule.cost import Cost
from recpipe.schedule.ir import Action, Op, Program
from recpipe.schedule.rules.base import Violation
from recpipe.schedule.simulate import simulate
from tests.schedule.cases import ALL, program
from tests.schedule.numeric import is_exact

Orders = list[list[Action]]
Fault = Callable[[Orders, int, int, random.Random], None]
TRIES = 4
"""Instances of each op that each fault is planted in."""


def drop(orders: Orders, rank: int, place: int, rng: random.Random) -> None:
    del orders[rank][place]


def duplicate(orders: Orders, rank: int, place: int, rng: random.Random) -> None:
    where = rng.choice([place, rng.randrange(len(orders[rank]))])
    orders[rank].insert(where, orders[rank][place])


def swap(orders: Orders, rank: int, place: int, rng: random.Random) -> None:
    order = orders[rank]
    near = min(place + 1, len(order) - 1) if rng.random() < 0.5 else rng.randrange(len(order))
    order[place], order[near] = order[near], order[place]


def move(orders: Orders, rank: int, place: int, rng: random.Random) -> None:
    action = orders[rank].pop(place)
    target = rng.choice([rank, rank, rng.randrange(len(orders))])
    orders[target].insert(rng.randrange(len(orders[target]) + 1), action)


FAULTS: dict[str, Fault] = {"drop": drop, "duplicate": duplicate, "swap": swap, "move": move}


def mutants(made: Program, fault: Fault, rng: random.Random) -> Iterator[Program]:
    """Some mutants for every op in the program."""
    places: dict[str, list[tuple[int, int]]] = {}
    for rank, order in enumerate(made.orders):
        for k, action in enumerate(order):
            places.setdefault(action.op.value, []).append((rank, k))
    for op in sorted(places):
        for rank, k in rng.sample(places[op], min(TRIES, len(places[op]))):
            orders = [list(order) for order in made.orders]
            fault(orders, rank, k, rng)
            if tuple(map(tuple, orders)) != made.orders:
                yield made.with_orders(orders)


def two_actions(found: Violation) -> bool:
    return found.second is not None and str(found.first) in str(found) and str(found.second) in str(found)


def is_harmless(changed: Program) -> bool:
    """The literal run, whose reference has no lag, and the simulator in both modes."""
    for host in ("async", "sync"):
        simulate(changed, Cost(host=host))
    return changed.lag > 0 or is_exact(changed)


@pytest.mark.parametrize("mode", ["step", "ahead", "spread"])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(name: str, fault: str, mode: str) -> None:
    made = program(name, mode, steps=2, ranks=2, microbatches=4)
    check(made)
    rejected = 0
    for changed in mutants(made, FAULTS[fault], random.Random(f"{name} {fault} {mode}")):
        found = list(violations(changed))
        if found:
            rejected += 1
            assert all(one.rule[0] == "V" and 0 <= one.rank < len(made.orders) for one in found)
            assert any(two_actions(one) for one in found), found
        else:
            assert fault in ("swap", "move")
            assert is_harmless(changed)
    assert rejected


@pytest.mark.parametrize("name", [name for name in ALL if name != "cyclic"])
def test_every_family_is_exact_by_execution(name: str) -> None:
    """The positive control: the literal run agrees with the plain loop before anything is planted."""
    for mode in ("step", "ahead", "spread"):
        assert is_exact(program(name, mode, steps=3, ranks=2, microbatches=4))


def test_the_literal_run_sees_lag() -> None:
    """The negative control: a family with a lag does not give the plain loop's numbers."""
    made = program("cyclic", "step", steps=3)
    assert check(made).weight_lag == 1
    assert not is_exact(made)


def test_the_literal_run_sees_a_deferred_update_that_is_late() -> None:
    """The negative control of `spread`: behind the lookup that must see it, a deferred update gives other numbers."""
    made = program("1f1b", "spread", steps=3, ranks=2, microbatches=4)
    orders = [list(order) for order in made.orders]
    for order in orders:
        for late in [action for action in order if action.op is Op.DU and action.step == 0]:
            order.remove(late)
            order.insert(order.index(late._replace(op=Op.EL, step=2)) + 1, late)
    assert {one.rule for one in violations(made.with_orders(orders))} == {"V9"}
    assert not is_exact(made.with_orders(orders))


@pytest.mark.parametrize("rule", ["complete_chain", "updates", "weight_versions", "table_versions"])
def test_without_a_rule_harm_gets_through(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: these rules are not covered by others, so switching one off lets a wrong program pass."""
    monkeypatch.setattr(checker, "RULES", tuple(one for one in checker.RULES if one.__name__ != rule))
    passed = 0
    for name in ("1f1b", "dualpipe"):
        made = program(name, "ahead", steps=2)
        for fault in ("drop", "move"):
            for changed in mutants(made, FAULTS[fault], random.Random(f"{name} {fault}")):
                passed += not list(violations(changed)) and not _survives(changed)
    assert passed


def _survives(changed: Program) -> bool:
    try:
        return is_harmless(changed)
    except (KeyError, ValueError, ScheduleError):
        return False
