"""One rank fails: the others leave, the user reads why, once, and a restart goes on where the last checkpoint is."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


def start(
    world: int, folder: Path, *faults: Fault, launcher: tuple[str, ...] = (), **settings: Any
) -> subprocess.Popen[str]:
    """Args: launcher: torchrun's words; none: ours."""
    settings = {**SETTINGS, "run__dir": str(folder), **settings}
    extra = environment(TMPDIR=str(folder.parent))
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments(world, settings, *faults)],
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
                with suppress(psutil.NoSuchProcess):
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "a"
    assert finish(start(2, folder))[0] == 0
    return final_tensors(folder)


def test_a_killed_and_a_stopped_rank_and_restarts_that_go_on(tmp_path, undisturbed):
    kill = Fault(1, "backward", 5, mark=str(tmp_path / "killed"))
    stop = Fault(1, "backward", 4, "stop", mark=str(tmp_path / "stopped"))
    code, out, err = finish(start(2, tmp_path / "b", kill, stop, launch__max_restarts=2, launch__watchdog_seconds=3))
    assert code == 0, err
    assert re.search(r"rank 1 has been silent for \d+ s; last it was at step \d, ", out), out
    assert "rank 1 was killed by SIGKILL" in out
    assert [f"starting all workers again, {n} of 2" in out for n in (1, 2, 3)] == [True, True, False]
    assert "resuming from" in out and "step 3" in out
    assert_bits(final_tensors(tmp_path / "b"), undisturbed)


def test_the_same_under_torchrun(tmp_path, undisturbed):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")
    kill = Fault(1, "backward", 5, mark=str(tmp_path / "killed"))
    stop = Fault(1, "backward", 4, "stop", mark=str(tmp_path / "stopped"))
    settings = {"launch__watchdog_seconds": 3, "resume": "auto"}
    # torchrun gives a stopped process so long to leave.
    launcher = (*torchrun, "--shutdown-timeout=1")
    code, out, err = finish(start(2, tmp_path / "b", kill, stop, launcher=launcher, **settings))
    assert code == 0, err
    assert len(re.findall(r"error: rank 1 has been silent for \d+ s; last it was at step \d, ", err)) == 1, err
    assert out.count("resuming from") == 2
    assert_bits(final_tensors(tmp_path / "b"), undisturbed)


def test_an_unexpected_error_leaves_its_trace_in_the_run_directory(tmp_path):
    code, _, err = finish(start(2, tmp_path / "a", Fault(1, "forward", 2, "raise")))
    trace = tmp_path / "a" / "failures" / "attempt-0" / "rank1.txt"
    assert code == 1
    assert err.splitlines()[0].startswith("error: rank 1: unexpected ZeroDivisionError: planted"), err
    assert err.splitlines()[1:] == [f"The full trace is in {trace}"]
    assert "Traceback" in trace.read_text()


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
