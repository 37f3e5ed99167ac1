"""Ctrl-C and SIGTERM end a benchmark even where Python loses the exception, and cut no cleaning up short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from recpipe.bench.ranks import Ranks
from recpipe.cli.main import main
from recpipe.train import leaving
from recpipe.train.leaving import Stopped, signals_raise

ENOUGH = 20
KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(leaving, "AGAIN_SECONDS", 0.05)


class Interrupted:
    """Its destructor meets a signal; Python drops what is raised there."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)], ids=["int", "term"]
)
def test_an_exception_lost_in_a_destructor_comes_again(number, raised, monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: lost.append(one.exc_type))
    with pytest.raises(raised), signals_raise():
        doomed = Interrupted(number)
        del doomed
        assert lost == [raised]
        time.sleep(ENOUGH)


@pytest.mark.parametrize("waits", ["with", "generator"])
def test_cleaning_up_is_not_cut_short(waits):
    steps = []

    def clean_up() -> None:
        for step in range(5):
            time.sleep(0.05)
            steps.append(step)

    def held():
        with ExitStack() as stack:
            stack.callback(clean_up)
            yield

    with pytest.raises(KeyboardInterrupt), signals_raise():
        if waits == "generator":
            for _ in held():
                signal.raise_signal(signal.SIGINT)
        with ExitStack() as stack:
            stack.callback(clean_up)
            signal.raise_signal(signal.SIGINT)
    assert steps == [0, 1, 2, 3, 4]


def test_an_inherited_disregard_does_not_hold_inside():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), signals_raise():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_all_is_as_before_behind_it():
    before, alarm = [signal.getsignal(kind) for kind in KINDS], signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(SystemExit), signals_raise():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(kind) for kind in KINDS] == before
    after = signal.getitimer(signal.ITIMER_REAL)
    assert after[1] == alarm[1] and after[0] == pytest.approx(alarm[0], abs=ENOUGH)


def test_a_benchmark_ends_whose_first_interrupt_was_swallowed(tmp_path, monkeypatch, capsys):
    real, swallowed = Ranks.ask, []

    def ask(self, request, **arguments):
        if not swallowed:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                swallowed.append(error)
        return real(self, request, **arguments)

    monkeypatch.setattr(Ranks, "ask", ask)
    small = ["ids=[skewed]", "rows=100", "dim=8", "batch_size=8", "links=[none]", "blocks=1", "steps=2"]
    words = [*small, f"contestants={json.dumps(['window:2x1:m1:step'])}", f"out={tmp_path}"]
    assert main(["bench", "compare", *words]) == 130
    assert swallowed and "interrupted" in capsys.readouterr().err


def test_a_rank_whose_command_has_ended_leaves():
    work = {"command": os.getpid() + 1}
    done = subprocess.run(
        [sys.executable, "-m", "recpipe.bench.worker", json.dumps(work)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
