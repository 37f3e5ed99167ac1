"""Local workers, workers found, and what the user sees when one of them fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from recpipe.errors import ConfigError
from recpipe.train.launch import launch_workers, worker_environment
from recpipe.train.slurm import first_node, slurm_environment

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS")


def environment(**extra: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key not in LAUNCHERS}
    return {**clean, "PYTHONPATH": str(ROOT), **extra}


def command(function: str, nproc: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.cli.workers", function, str(nproc), str(folder)]


def run(function: str, folder: Path, nproc: int = 2) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(function, nproc, folder),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environment(TMPDIR=str(folder)),
    )


def wait_for(condition: Callable[[], bool]) -> None:
    """Polls; the suite's own timeout ends what never comes true."""
    while not condition():
        time.sleep(0.05)


def test_local_workers(tmp_path: Path) -> None:
    done = run("total_then_rank", tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == 1, "the largest exit code of the ranks counts"
    assert (tmp_path / "rank0").read_text() == "0 2 3 0 2 0 1 lo"
    assert (tmp_path / "rank1").read_text() == "1 2 3 1 2 1 1 lo"


def test_one_worker_runs_in_this_process(tmp_path: Path) -> None:
    done = run("total", tmp_path, nproc=1)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "rank0").read_text() == "0 1 1 0 1 0 1 lo"


def test_error_of_the_first_failing_rank_alone(tmp_path: Path) -> None:
    """Case 25: not the peers' "connection closed by peer"."""
    done = run("user_error", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: rank 1: the loss is not finite at step 7\n"
    assert done.stdout == ""


def test_wrong_setting_found_by_all_ranks_is_said_once(tmp_path: Path) -> None:
    done = run("config_error", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: batch_size=0: must be at least 1\n"


def test_unexpected_error_names_the_place_and_the_trace(tmp_path: Path) -> None:
    done = run("bug", tmp_path)
    assert done.returncode == 1
    found = re.fullmatch(
        r"error: rank 1: unexpected KeyError: 'nowhere' \(workers\.py:\d+ in bug\)\nThe full trace is in (.*)\n",
        done.stderr,
    )
    assert found, done.stderr
    assert "Traceback" in Path(found[1]).read_text()


def test_killed_rank(tmp_path: Path) -> None:
    done = run("killed", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: rank 1 was killed by SIGKILL"), done.stderr
    assert "memory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_leaves_no_process(tmp_path: Path, kind: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        command("endless", 2, tmp_path), cwd=ROOT, env=environment(), stderr=subprocess.PIPE
    ) as launcher:
        wait_for(lambda: all((tmp_path / f"pid{rank}").exists() for rank in range(2)))
        family = psutil.Process(launcher.pid).children(recursive=True)
        launcher.send_signal(kind)
        assert launcher.wait(60) == code
        assert launcher.stderr is not None
        assert len(launcher.stderr.read().splitlines()) == 1
    psutil.wait_procs(family, timeout=10)
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.cli.workers", "total", "5", str(tmp_path)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment(GLOO_SOCKET_IFNAME="lo"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank1").read_text().startswith("1 2 3 ")


def test_under_torchrun_one_rank_speaks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.cli.workers", "config_error", "5", str(tmp_path)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment(GLOO_SOCKET_IFNAME="lo"),
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: batch_size=0") == 1


def test_under_slurm(tmp_path: Path) -> None:
    tasks = []
    for rank in range(2):
        slurm = {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": str(rank),
            "SLURM_JOB_ID": str(os.getpid()),
        }
        extra = environment(**slurm, SLURM_STEP_NODELIST="localhost", GLOO_SOCKET_IFNAME="lo")
        tasks.append(subprocess.Popen(command("total", 5, tmp_path), cwd=ROOT, env=extra))
    assert [task.wait(120) for task in tasks] == [0, 0]
    assert (tmp_path / "rank0").read_text().startswith("0 2 3 ")


def test_slurm_environment() -> None:
    assert slurm_environment({"SLURM_PROCID": "1"}) is None
    found = slurm_environment({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[03-05,9],cpu1"})
    assert found is not None
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["MASTER_ADDR"]) == ("3", "8", "0", "gpu03")
    given = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "here", "MASTER_PORT": "7"}
    assert slurm_environment(given) == {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "first"), [("a", "a"), ("a,b", "a"), ("n[1,3]", "n1"), ("n[07-09]-ib,m", "n07-ib"), ("x1,y[2-3]", "x1")]
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_alone_outside_a_launch() -> None:
    assert (worker_environment().rank, worker_environment().world) == (0, 1)


def test_no_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"launch\.nproc=0"):
        launch_workers(print, 0)
