"""Strangers' files, damaged at random: only the project's own errors, soon. The long form is `python -m tools.fuzz_files`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.fuzz_corpus import TARGETS, Target
from tools.fuzz_files import Corpus, Outcome, attempt, campaign, quiet

MUTATIONS = 2000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    with quiet():
        yield Corpus(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_a_control_valid_files_are_read(corpus: Corpus, name: str) -> None:
    next(target for target in TARGETS if target.name == name).load(corpus.folders[name])


def test_damaged_files_raise_our_own_errors_only(corpus: Corpus) -> None:
    """cases 109, 122, 123, 124, 126, 167"""
    outcome = Outcome()

    @settings(max_examples=MUTATIONS, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**48))
    def damage(seed: int) -> None:
        attempt(corpus, TARGETS[outcome.mutations % len(TARGETS)], seed, outcome)

    damage()
    assert not outcome.findings
    assert outcome.mutations >= MUTATIONS
    assert all(outcome.errors[target.name] for target in TARGETS), "every reader has refused something"


def test_a_control_a_reader_without_the_door_is_found(tmp_path: Path) -> None:
    """It believes types, keys and names, as readers without the door do."""

    def load(folder: Path) -> None:
        found = json.loads((folder / "summary.json").read_text())
        assert found["rows"] + 1 > found["steps"]

    target = Target("hole", next(one.make for one in TARGETS if one.name == "summary"), load)
    outcome = campaign(Corpus(tmp_path, (target,)), 200, 1, Outcome())
    assert any("KeyError" in text for text in outcome.findings)
    assert any("TypeError" in text for text in outcome.findings)
