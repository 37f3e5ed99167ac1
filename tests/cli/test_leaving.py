"""Signals while a command starts: each is heard, whatever is imported or started at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from recpipe.train import launch_local
from tests.cli.test_launch import ROOT, command, environment, wait_for

SLOW_MODULE = """
import pathlib, time
pathlib.Path("importing").touch()
try:
    time.sleep(60)
except BaseException:
    pass
raise AttributeError("half a module")
"""
INTERRUPTED_IMPORT = """
import sys
from recpipe.cli.ctrl_c import ends_by_ctrl_c
from recpipe.cli.failure import guarded
with ends_by_ctrl_c():
    sys.exit(guarded(lambda: __import__("slow_module")))
"""
LAUNCHER_ALONE = """
import sys
from recpipe.cli import main
from recpipe.train import launch
launch.run_local = lambda *_: print(sorted({"torch", "torchrec", "pandas"} & set(sys.modules))) or 0
main.start_early = lambda: None
sys.exit(main.main(["train", "data.num_train=64", "launch.nproc=2"]))
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that the launcher has sent, by process."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(launch_local.os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_starts_after_the_signal_is_told(told, kind):
    """Case 161: the signal came between the first worker and the second."""
    with launch_local._Forwarding() as signals:
        signals.add(101)
        signal.raise_signal(kind)
        signals.add(102)
    assert told == [(101, launch_local.FORWARDED), (102, launch_local.FORWARDED)]
    assert signals.exit_code == 128 + kind


def test_a_signal_before_the_first_worker_starts_none(told, monkeypatch, tmp_path):
    """Case 161: the fork server still imports, and a worker cannot be told."""
    monkeypatch.setattr(launch_local.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch_local, "start_early", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        launch_local.run_local(print, 2, (), 3)
    assert told == []
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_signal_ends_what_waits(told, monkeypatch):
    clock = iter([0.0, 0.5, 2.0])
    monkeypatch.setattr(launch_local.time, "monotonic", lambda: next(clock))
    with launch_local._Forwarding() as signals:
        signals.add(101)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the same one, sent twice by whoever launches
        with pytest.raises(launch_local._Stopped):
            signal.raise_signal(signal.SIGTERM)
    assert told == [(101, launch_local.FORWARDED)]


def test_ctrl_c_inside_an_import_is_one_line(tmp_path):
    """Case 162: an import that swallows the interrupt, and fails with another error."""
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_IMPORT], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env=environment(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"),
    )  # fmt: skip
    wait_for(lambda: (tmp_path / "importing").exists())
    process.send_signal(signal.SIGINT)
    assert (process.communicate()[1], process.returncode) == ("interrupted\n", 130)


def test_the_launcher_imports_no_torch(tmp_path):
    """Case 162: what is never imported cannot be interrupted in the middle, and a launcher is small and quick."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER_ALONE], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment()
    )
    assert done.stdout == "[]\n"


def test_no_worker_outlives_a_launcher_that_is_killed_while_they_start(tmp_path):
    """Case 163: at that moment one rank waits for another that never comes."""
    launcher = subprocess.Popen(command("lonely", 2, tmp_path), cwd=ROOT, env=environment(TMPDIR=str(tmp_path)))
    wait_for(lambda: (tmp_path / "joining0").exists())
    family = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_a_worker_whose_launcher_has_ended_does_nothing(tmp_path, monkeypatch):
    """Case 163: the launcher was killed before the worker could ask to hear of it."""
    pid = os.fork()
    if not pid:
        from recpipe.train import local_worker

        ended = type("Ended", (), {"is_alive": lambda self: False})()
        local_worker.multiprocessing.parent_process = lambda: ended
        variables = {"RANK": "0", local_worker.FOLDER: str(tmp_path)}
        local_worker.worker_main(lambda: (tmp_path / "worked").write_text("") and 0, variables)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not (tmp_path / "worked").exists()
