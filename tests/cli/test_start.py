"""The start of a run: workers are copies of a warm process, and how long it took to the first step is said and written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recpipe.cli import main as program
from recpipe.train.warm import STARTED, note_start, noted_start, seconds_since_start

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["limit_train_batches=2", "limit_val_batches=1", "limit_test_batches=1", "save_checkpoint=false", "batch_size=16"]


def test_the_start_is_noted_once_and_read_once(monkeypatch):
    monkeypatch.delenv(STARTED, raising=False)
    assert seconds_since_start() is None
    note_start()
    first = os.environ[STARTED]
    note_start()
    assert os.environ[STARTED] == first
    assert noted_start() == {STARTED: first}
    assert noted_start() == {}
    monkeypatch.setenv(STARTED, repr(time.time() - 100))
    assert 100 <= seconds_since_start() < 110
    assert seconds_since_start() is None


@pytest.mark.parametrize(
    ("words", "warm"),
    [(["train", "seed=1"], True), (["train", "--help"], False), (["train", "launch.nproc=1"], False), (["plan"], False)],
)
def test_who_starts_workers_begins_with_their_imports(monkeypatch, words, warm):
    begun = []
    monkeypatch.setattr(program, "start_early", lambda: begun.append(True))
    monkeypatch.setattr(program, "found_workers", lambda _: None)
    monkeypatch.setattr("recpipe.cli.app.run_command", lambda *_: 0)
    assert program.main(words) == 0
    assert begun == [True] * warm
    monkeypatch.delenv(STARTED)


def test_the_first_step_is_timed_from_the_command(tmp_path):
    earlier = time.time() - 50
    done = subprocess.run(
        [sys.executable, "-m", "recpipe.cli.main", "train", *SMALL, f"run.dir={tmp_path}/run", "log.progress=plain"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), STARTED: repr(earlier)},
    )  # fmt: skip
    total = time.time() - earlier
    seconds = json.loads((tmp_path / "run" / "summary.json").read_text())["seconds_to_first_step"]
    assert 50 < seconds < total
    assert f"first step done {seconds:.1f} s after the start of the command" in done.stdout + done.stderr
