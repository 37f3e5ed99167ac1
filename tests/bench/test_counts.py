"""A guard against regressions that does not depend on the clock: what a step of a fixed small job sends, issues and allocates.

A figure that falls is good news: put the new one here. One that rises needs a reason in the log.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from recpipe.bench.recpipe_side import RecpipeSide
from recpipe.bench.settings import Workload, parse_contestant
from recpipe.bench.wire import Tape, recording
from tests.ranks import run_ranks

WORK = Workload("dlrm", "skewed", "", ranks=2, batch_size=64, rows=500, dim=8, num_batches=4)
WARMUP = 8


def count(rank: int, world: int, name: str) -> dict[str, Any]:
    """Of a steady step on this rank, in the mean over all batches."""
    side = RecpipeSide(parse_contestant(name, world), WORK)
    for _ in range(WARMUP):
        side.step()
    before, tape = dict(side.sent()), Tape()
    with recording(tape):
        for _ in range(WORK.num_batches):
            side.step()
    sent = {purpose: (total - before.get(purpose, 0)) / WORK.num_batches for purpose, total in side.sent().items()}
    calls = [call.name for call in tape.calls]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        for _ in range(WORK.num_batches):
            side.step()
    events = measured.profiler.kineto_results.events()
    return {
        "sent": sent,
        "calls": {one: calls.count(one) / WORK.num_batches for one in set(calls)},
        "operators": sum(event.name().startswith("aten::") for event in events) / WORK.num_batches,
        "allocations": sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events) / WORK.num_batches,
    }


DENSE = 2894884.0
WINDOW = {"rows": 12160.0, "row_gradients": 12144.0}
COLLECTIVES = {"all_reduce": 5.0, "all_to_all_single": 6.0}
# One bucket of five has an odd number of elements: its pieces are filled up.
SHORT_DENSE = DENSE / 2 + 2
SHORT_COLLECTIVES = {"all_gather_single": 5.0, "all_to_all_single": 11.0}
# Comparing the counts of a size exchange on both sides took 26 operators and 6 allocations of spread.
# Contestant -> what a step of rank 0 sends, what it issues, and at most how many operators and allocations it takes.
EXPECTED: dict[str, tuple[dict[str, float], dict[str, float], int, int]] = {
    "window:2x1:m1:ahead": ({**WINDOW, "ids": 1930.0, "dense": DENSE}, COLLECTIVES, 1185, 292),
    "window:2x1:m4:ahead": (
        {**WINDOW, "ids": 2050.0, "dense": DENSE}, {**COLLECTIVES, "all_to_all_single": 12.0}, 3325, 650,
    ),
    "window:2x1:m1:spread": (
        {**WINDOW, "ids": 2310.0, "dense": DENSE}, {**COLLECTIVES, "all_to_all_single": 8.0}, 1475, 398,
    ),
    "window:2x1:m1:ahead:exchange.dense_wire_dtype=bfloat16": (
        {**WINDOW, "ids": 1930.0, "dense": SHORT_DENSE}, SHORT_COLLECTIVES, 1250, 302,
    ),
    "window:2x1:m1:ahead:bf16": (
        {"rows": 6080.0, "row_gradients": 6072.0, "ids": 1930.0, "dense": SHORT_DENSE}, SHORT_COLLECTIVES, 1420, 363,
    ),
    "window:1x2:m2:ahead": (
        {"ids": 2544.0, "row_gradients": 19904.0, "activation": 262656.0},
        {"all_to_all_single": 8.0, "isend": 2.0, "irecv": 2.0}, 1830, 392,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_step_costs(name):
    sent, calls, operators, allocations = EXPECTED[name]
    found = run_ranks(count, 2, name)[0]
    assert found["sent"] == sent
    assert found["calls"] == calls
    assert found["operators"] <= operators
    assert found["allocations"] <= allocations
