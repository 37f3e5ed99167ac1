"""Sabotage: each fault of `sabotage.py` makes `recpipe verify` fail and name what differs; without it verify passes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest

from recpipe.comm import Groups
from recpipe.train.config import VerifyConfig
from recpipe.train.setup import build_job
from recpipe.train.verify import DEFAULT_TOLERANCE, compare, largest, told
from tests.ranks import run_ranks
from tests.train.jobs import small_config
from tests.train.sabotage import FAULTS

STEPS = 10
BASE = {"dtype": "float64", "tables__sharding": "row_wise"}
RULE = {"optimizer__table__name": "rowwise_adagrad"}


def judge(rank: int, world: int, cases: dict[str, Any]) -> dict[str, tuple[bool, list[str], dict[str, float]]]:
    """What verify says of each case: passed, lines, differences."""
    groups, said = Groups.create(), {}
    for name, (fault, settings) in cases.items():
        job = build_job(small_config(2, VerifyConfig, **{**BASE, **RULE, **settings}), groups)
        lines: list[str] = []
        with nullcontext() if fault is None else fault(job):
            found = compare(job, STEPS, DEFAULT_TOLERANCE["float64"])
        said[name] = told(found, DEFAULT_TOLERANCE["float64"], lines.append), lines, largest(found)
    return said


@cache
def judged() -> dict[str, tuple[bool, list[str], dict[str, float]]]:
    """All faults, and each of their settings without a fault, on the same two ranks."""
    faults = {name: (fault, settings) for name, (fault, _, settings) in FAULTS.items()}
    plain = {f"plain {settings}": (None, settings) for _, _, settings in FAULTS.values()}
    return run_ranks(judge, 2, {**faults, **plain})[0]


@pytest.mark.parametrize("name", FAULTS)
def test_verify_sees_and_names(name):
    passed, lines, differences = judged()[name]
    kind = FAULTS[name][1]
    assert not passed, lines
    assert any(line.split()[0] == kind and "beyond the tolerance: " in line for line in lines), lines
    assert not differences[kind] <= 1e-12


@pytest.mark.parametrize("settings", [settings for *_, settings in FAULTS.values()], ids=str)
def test_without_a_fault_verify_passes(settings):
    passed, lines, _ = judged()[f"plain {settings}"]
    assert passed, lines
