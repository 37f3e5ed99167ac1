"""The automatic choice: never slower than any fixed family, optimal where every order can be tried."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from recpipe.errors import ScheduleError
from recpipe.schedule.assemble import assemble, microbatch_ratio
from recpipe.schedule.auto import Scope, Setting, choose
from recpipe.schedule.check import check
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import simulate
from tests.schedule.cases import SYNCHRONOUS


def random_cost(rng: random.Random) -> Cost:
    return Cost(
        forward=rng.uniform(0.5, 2),
        input=rng.uniform(0.5, 2),
        weight=rng.uniform(0.1, 2),
        overhead=rng.choice([0, 0.1]),
        profile=tuple(rng.uniform(0.5, 2) for _ in range(rng.choice([0, 3, 4]))),
        optimizer=rng.choice([0, 1]),
        weight_bytes=rng.choice([0, 5]),
        far=Link(rng.choice([0, 0.2, 1]), rng.choice([1, 4, 1e9])),
        delay=tuple(rng.choice([0, 0, 2]) for _ in range(2)),
        lookup=rng.choice([0, 1]),
        update=rng.choice([0, 1]),
        row_bytes=rng.choice([0, 4]),
        host=rng.choice(["async", "sync"]),
    )


def times(request: Request, setting: Setting) -> dict[str, float]:
    """Every fixed family that accepts the request."""
    found = {}
    for name in SYNCHRONOUS:
        try:
            made = assemble(name, request, setting.exchange, setting.steps, setting.lanes, setting.fill)
        except ScheduleError:
            continue
        found[name] = simulate(made, request.cost.scaled(microbatch_ratio(made, request))).makespan
    return found


@pytest.mark.parametrize("block", range(10))
def test_never_loses_to_a_fixed_family(block: int) -> None:
    """10 x 20 random cost settings, with and without exchanges, replicas and steps."""
    rng = random.Random(block)
    for _ in range(20):
        request = Request(rng.choice([2, 4]), rng.choice([2, 4, 8]), cost=random_cost(rng))
        mode = rng.choice(["none", "step", "ahead", "spread"])
        setting = Setting(Exchange(mode), 1 if mode == "none" else 2, rng.choice([1, 2]))
        chosen, candidates = choose(request, setting)
        check(chosen)
        fixed = times(request, setting)
        assert candidates[0].makespan <= min(fixed.values()) + 1e-9, fixed


def words(microbatches: int) -> list[tuple[str, ...]]:
    """Every order of one rank: no prefix has more I than F, or more W than I."""
    found = []
    size = 3 * microbatches
    for forwards in combinations(range(size), microbatches):
        rest = [k for k in range(size) if k not in forwards]
        for inputs in combinations(rest, microbatches):
            weights = [k for k in rest if k not in inputs]
            if all(f < i < w for f, i, w in zip(forwards, inputs, weights, strict=True)):
                word = {**dict.fromkeys(forwards, "F"), **dict.fromkeys(inputs, "I"), **dict.fromkeys(weights, "W")}
                found.append(tuple(word[k] for k in range(size)))
    return found


def finish(orders: tuple[tuple[str, ...], ...], cost: Cost, total: int) -> float:
    """Makespan of one combination of orders, computed apart from the simulator; infinite for a deadlock."""
    last = len(orders) - 1
    length = {"F": cost.forward, "I": cost.input, "W": cost.weight}
    share = [cost.share(rank, last + 1) for rank in range(last + 1)]
    arrived: dict[tuple[str, int, int], float] = {("F", 0, m): 0.0 for m in range(total)}
    place, free = [0] * (last + 1), [0.0] * (last + 1)
    count = [dict.fromkeys("FIW", 0) for _ in orders]
    moved = True
    while moved:
        moved = False
        for rank, word in enumerate(orders):
            while place[rank] < len(word):
                op = word[place[rank]]
                m = count[rank][op]
                ready = 0.0 if op == "W" else arrived.get((op, rank, m))
                if ready is None:
                    break
                end = free[rank] = max(free[rank], ready) + length[op] * share[rank]
                if op == "F":
                    arrived["F" if rank < last else "I", min(rank + 1, last), m] = end + (hop(cost, rank) if rank < last else 0)
                elif op == "I" and rank:
                    arrived["I", rank - 1, m] = end + hop(cost, rank - 1)
                count[rank][op] += 1
                place[rank] += 1
                moved = True
    return max(free) if all(p == len(w) for p, w in zip(place, orders, strict=True)) else float("inf")


def hop(cost: Cost, link: int) -> float:
    return cost.far.alpha + (cost.delay[link] if link < len(cost.delay) else 0.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_optimal_on_small_cases(p: int, m: int, seed: int) -> None:
    """With stage s on rank s, against every order; the whole choice may only be better (other placements)."""
    best, request = exhaustive(p, m, seed)
    linear = [c.makespan for c in choose(request)[1] if c.label.split()[0] in LINEAR]
    assert min(linear) == pytest.approx(best)
    assert choose(request)[1][0].makespan <= best + 1e-9


LINEAR = ("gpipe", "1f1b", "zb_h1", "zb_h2", "greedy", "searched")


def exhaustive(p: int, m: int, seed: int) -> tuple[float, Request]:
    rng = random.Random(f"{p} {m} {seed}")
    cost = Cost(
        *(rng.uniform(0.2, 2) for _ in range(3)),
        profile=tuple(rng.uniform(0.5, 2) for _ in range(p)),
        far=Link(rng.choice([0, 0.5])),
        delay=(rng.choice([0, 1.5]),),
    )
    orders = product(words(m), repeat=p)
    return min(finish(one, cost, m) for one in orders), Request(p, m, cost=cost)


@pytest.mark.parametrize("seed", range(2))
def test_optimal_on_the_largest_small_case(seed: int) -> None:
    """p = 3, M = 3: 74,088 combinations of orders."""
    best, request = exhaustive(3, 3, seed)
    linear = [c.makespan for c in choose(request)[1] if c.label.split()[0] in LINEAR]
    assert min(linear) == pytest.approx(best)


def test_memory_and_copies_are_limits() -> None:
    request = Request(4, 8, memory=4)
    chosen, candidates = choose(request, scope=Scope(copies=1))
    assert check(chosen, bound=4).peak_activations <= 4
    notes = {candidate.label: candidate.note for candidate in candidates}
    assert notes["gpipe"] == "holds 8 activations, schedule.memory=4"
    assert notes["dualpipe"].startswith(("holds 5", "2 weight copies"))
    with pytest.raises(ScheduleError, match=r"no schedule fits schedule.memory=0.1.* The smallest, .* holds "):
        choose(Request(4, 8, memory=0.1))


def test_a_lag_is_never_chosen_over_several_steps() -> None:
    _, candidates = choose(Request(4, 4, cost=Cost(1, 0.5, 0.5)), Setting(steps=3))
    (cyclic,) = [candidate for candidate in candidates if candidate.label == "cyclic"]
    assert cyclic.note == "not exact: weights are 1 step old"


def test_more_microbatches_may_pay() -> None:
    """Counts are compared at equal work; overhead makes the largest count wrong."""
    request = Request(4, 4, cost=Cost(overhead=0.2))
    _, candidates = choose(request, scope=Scope(families=("1f1b",), microbatches=(2, 4, 8, 16, 64)))
    assert candidates[0].label in ("1f1b microbatches=8", "1f1b microbatches=16")
    assert candidates[-1].label in ("1f1b microbatches=2", "1f1b microbatches=64")
