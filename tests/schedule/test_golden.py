"""Golden values: texts as files, makespans, the slack table, the frozen-window figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from recpipe.schedule.assemble import assemble, complete
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families import FAMILIES, build
from recpipe.schedule.families.base import Request
from recpipe.schedule.families.greedy import list_schedule, warm_up
from recpipe.schedule.ir import Action, Op
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.simulate import simulate
from recpipe.schedule.text import format_program, parse_program
from tests.schedule.cases import measured, request

GOLDEN = Path(__file__).parent / "golden"

CHIMERA_4 = """
Fd0s0 ....  Fd1s0 Fu0s3 Bu0s3 Fu1s3 Bu1s3 Bd0s0 ....  Bd1s0
....  Fd0s1 Fu0s2 Fd1s1 Fu1s2 Bu0s2 Bd0s1 Bu1s2 Bd1s1 ....
....  Fu0s1 Fd0s2 Fu1s1 Fd1s2 Bd0s2 Bu0s1 Bd1s2 Bu1s1 ....
Fu0s0 ....  Fu1s0 Fd0s3 Bd0s3 Fd1s3 Bd1s3 Bu0s0 ....  Bu1s0
"""


def test_chimera_slots() -> None:
    """Order of D = N = 4 as printed in the reference; nothing starts after its printed slot, and slots are ten."""
    timeline = simulate(assemble("chimera", Request(4, 4)), Cost(1, 0.5, 0.5))
    for rank, line in enumerate(CHIMERA_4.split("\n")[1:-1]):
        printed = [(slot, cell) for slot, cell in enumerate(line.split()) if cell != "...."]
        events = [e for e in timeline.compute(rank) if e.action.op in (Op.F, Op.B)]
        assert [_cell(e.action) for e in events] == [cell for _, cell in printed]
        assert all(e.start <= slot for e, (slot, _) in zip(events, printed, strict=True))
    assert timeline.makespan == 10


def _cell(action: Action) -> str:
    return f"{action.op}{'du'[action.replica]}{action.microbatch}s{action.stage}"


@pytest.mark.parametrize("name", list(FAMILIES))
def test_text(name: str) -> None:
    """The compute order of every family at p = 4, M = 8, and two steps of a complete 1F1B. `tools` rewrites them."""
    made = build(name, request(name, 4, 8))
    text = (GOLDEN / f"{name}_4_8.txt").read_text()
    assert format_program(made) == text
    assert parse_program(text) == made


@pytest.mark.parametrize("mode", ["ahead", "spread"])
def test_text_of_a_complete_program(mode: str) -> None:
    made = assemble("1f1b", Request(2, 3), Exchange(mode), steps=2, lanes=2)
    text = (GOLDEN / f"1f1b_{mode}_2_3.txt").read_text()
    assert format_program(made) == text
    assert parse_program(text) == made


@pytest.mark.parametrize(
    ("depth", "equal", "double"),
    [(4, (14, 10), (21, 16)), (6, (22, 16), (33, 26)), (8, (30, 22), (45, 36)), (16, (62, 46), (93, 76))],
)
def test_makespans_at_n_equals_d(depth: int, equal: tuple[int, int], double: tuple[int, int]) -> None:
    for cost, expected in ((Cost(1, 0.5, 0.5), equal), (Cost(1, 1, 1), double)):
        found = [simulate(assemble(name, Request(depth, depth)), cost).makespan for name in ("1f1b", "chimera")]
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("depth", "n", "chimera", "one"),
    [(4, 16, 0.172, 0.158), (4, 32, 0.158, 0.086), (8, 16, 0.273, 0.304), (8, 32, 0.238, 0.179)],
)
def test_concatenation_wins_and_loses(depth: int, n: int, chimera: float, one: float) -> None:
    for name, ratio in (("chimera", chimera), ("1f1b", one)):
        assert measured(assemble(name, Request(depth, n)), Cost()).bubble_ratio == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(("depth", "n"), [(4, 16), (8, 32)])
def test_doubling_and_halving_leave_less_bubble(depth: int, n: int) -> None:
    def time(beyond: str, cost: Cost) -> float:
        return simulate(assemble("chimera", Request(depth, n, beyond=beyond)), cost).makespan

    cost = Cost()
    assert time("halve", cost.scaled(0.5)) < time("double", cost) < time("concatenate", cost)


@pytest.mark.parametrize(
    ("delay", "fixed", "replanned", "ahead"),
    [
        (0, 390, 390, [7, 5, 3, 1]),
        (10, 400, 400, [7, 5, 3, 1]),
        (20, 440, 410, [8, 5, 3, 1]),
        (30, 500, 420, [9, 5, 3, 1]),
        (40, 560, 430, [9, 5, 3, 1]),
    ],
)
def test_slack(delay: float, fixed: float, replanned: float, ahead: list[int]) -> None:
    """S = 4, N = 12, F = I = W = 10, a delay on link 0."""
    slow = Request(4, 12, cost=Cost(10, 10, 10, delay=(delay,)))
    order = list_schedule(Request(4, 12, cost=Cost(10, 10, 10)), [7, 5, 3, 1])
    assert warm_up(slow.cost, 4, 12) == ahead
    assert simulate(complete(order, slow), slow.cost).makespan == fixed
    assert simulate(assemble("greedy", slow), slow.cost).makespan == replanned


@pytest.mark.parametrize(
    ("exchange", "total", "exposed"), [(10.0, 260.0, 0.125), (20.0, 330.0, 0.28125)]
)
def test_frozen_window(exchange: float, total: float, exposed: float) -> None:
    """N = 8, compute 10 + 20, two forward buffers: compute bound, then network bound."""
    cost = Cost(10, 10, 10, row_bytes=8 * exchange, far=Link(0, 1), host="sync")
    made = assemble("1f1b", Request(1, 8), Exchange("step", buffers=2))
    metrics = measured(made, cost)
    moved = [metrics.exchange[op] for op in ("EO", "EG")]
    assert metrics.makespan == total
    assert sum(one.total for one in moved) == 16 * exchange
    assert sum(one.exposed for one in moved) / (16 * exchange) == exposed
