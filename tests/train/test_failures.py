"""One rank fails: the others leave, the user reads why, once, and a restart goes on where the last checkpoint is."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.test_launch import ROOT, environment, wait_for
from tests.train.faults import Fault, arguments, final_tensors
from tests.train.resuming import assert_bits

# Far more than any of these runs takes, and less than the suite's own limit, after which processes would be left over.
PATIENCE = 150
SETTINGS = {"log__progress": "none", "data__num_train": 130, "checkpoint__every_steps": 3, "batch_size": 8}


def start(world: int, folder: Path, fault: Fault | None = None, **settings: Any) -> subprocess.Popen[str]:
    settings = {**SETTINGS, "run__dir": str(folder), **settings}
    extra = environment(TMPDIR=str(folder.parent))
    return subprocess.Popen(
        arguments(world, settings, fault),
        cwd=ROOT,
        env=extra,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and output; nothing may be left of its family."""
    family: dict[int, psutil.Process] = {}
    begun = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - begun > PATIENCE:
            for one in (*family.values(), process):
                one.kill()
        family |= {one.pid: one for one in _children(process.pid)}
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate()
    _, alive = psutil.wait_procs(list(family.values()), timeout=10)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    return process.returncode, out, err


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_a_killed_rank_and_a_restart_that_goes_on(tmp_path):
    assert finish(start(2, tmp_path / "a"))[0] == 0
    fault = Fault(1, "backward", 6, mark=str(tmp_path / "mark"))
    code, out, err = finish(start(2, tmp_path / "b", fault, launch__max_restarts=1))
    assert code == 0, err
    assert "rank 1 was killed by SIGKILL" in out and "starting all workers again, 1 of 1" in out
    assert "resuming from" in out and "step 3" in out
    assert_bits(final_tensors(tmp_path / "b"), final_tensors(tmp_path / "a"))


def test_an_unexpected_error_leaves_its_trace_in_the_run_directory(tmp_path):
    code, _, err = finish(start(2, tmp_path / "a", Fault(1, "forward", 2, "raise")))
    trace = tmp_path / "a" / "failures" / "attempt-0" / "rank1.txt"
    assert code == 1
    assert err.splitlines()[0].startswith("error: rank 1: unexpected ZeroDivisionError: planted"), err
    assert err.splitlines()[1:] == [f"The full trace is in {trace}"]
    assert "Traceback" in trace.read_text()


def test_a_stopped_rank_is_named_and_all_leave_and_go_on(tmp_path):
    fault = Fault(1, "forward", 2, "stop", mark=str(tmp_path / "mark"))
    code, out, err = finish(start(2, tmp_path / "a", fault, launch__watchdog_seconds=3, launch__max_restarts=1))
    assert code == 0, err
    assert re.search(r"rank 1 has been silent for \d+ s; last it was at step \d, ", out), out
    assert out.count("starting all workers again") == 1
    assert "test at step 9" in out


def test_termination_writes_a_checkpoint_and_leaves(tmp_path):
    long = {"data__num_train": 130_000, "checkpoint__every_steps": 0}
    process = start(2, tmp_path / "a", **long)
    wait_for(lambda: (tmp_path / "a" / "metrics.jsonl").exists())
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, err) == (128 + signal.SIGTERM, "")
    assert "stopping: finishing the step, then a checkpoint" in out
    step = int((saved := next((tmp_path / "a" / "checkpoints").iterdir())).name.partition("-")[2])
    assert f"stopped after step {step}, with a checkpoint; go on with: recpipe train resume=" in out
    assert (saved / "manifest.json").exists()


def test_the_second_interrupt_leaves_at_once(tmp_path):
    """The worker hangs in a step, so the first one cannot be followed."""
    process = start(1, tmp_path / "a", Fault(0, "forward", 2, "hang", mark=str(tmp_path / "mark")))
    wait_for(lambda: (tmp_path / "mark").exists())
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 128 + signal.SIGINT


def test_workers_leave_when_their_launcher_is_killed(tmp_path):
    process = start(2, tmp_path / "a", data__num_train=130_000)
    wait_for(lambda: (tmp_path / "a" / "metrics.jsonl").exists())
    family = _children(process.pid)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    assert len(list((tmp_path / "a" / "checkpoints").glob("step-*"))) >= 1
