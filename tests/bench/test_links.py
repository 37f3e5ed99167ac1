"""Namespaces joined at a chosen rate: bytes are counted, everything is removed whatever happens, and refusals are clear."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from recpipe.bench import links
from recpipe.bench.links import Loopback, Namespaces, namespaces, remove_leftovers
from recpipe.errors import ConfigError


def can_make_links() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    made = subprocess.run(["ip", "netns", "add", "rpbench0probe"], check=False, capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", "rpbench0probe"], check=False, capture_output=True)
    return made


needs_links = pytest.mark.skipif(
    not can_make_links(), reason="needs root, iproute2 and a kernel with network namespaces"
)

RECEIVE = """
import socket
with socket.create_server(("0.0.0.0", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while connection.recv(65536): pass
"""
SEND = """
import socket, sys
with socket.create_connection(("10.77.0.2", 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[1])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""


def mine() -> list[str]:
    return [name for name in namespaces() if name.startswith(f"rpbench{os.getpid()}")]


@needs_links
def test_bytes_cross_and_are_counted():
    size = 3_000_000
    with Namespaces(2) as network:
        network.set_rate("100mbit")
        before = network.sent()
        receiver = subprocess.Popen(
            [*network.prefix(1), sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
        subprocess.run([*network.prefix(0), sys.executable, "-c", SEND, str(size)], check=True)
        receiver.wait()
        receiver.stdout.close()
        sent = [after - first for first, after in zip(before, network.sent(), strict=True)]
    assert size < sent[0] < 1.05 * size
    assert sent[1] < 0.05 * size


@needs_links
def test_the_rate_is_the_one_asked_for():
    with Namespaces(2) as network:
        network.set_rate("400mbit")
        for rank in range(2):
            shown = subprocess.run(
                [*network.prefix(rank), "tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True
            )
            assert "tbf" in shown.stdout and "rate 400Mbit" in shown.stdout


@needs_links
def test_everything_is_removed_after_an_error():
    with pytest.raises(RuntimeError), Namespaces(3):
        assert len(mine()) == 4
        raise RuntimeError
    assert mine() == []


@needs_links
def test_what_was_half_made_is_removed(monkeypatch):
    real = links._run

    def fail_at_the_second_rank(*words: str) -> str:
        if f"port{1}" in words:
            raise ConfigError("no more")
        return real(*words)

    monkeypatch.setattr(links, "_run", fail_at_the_second_rank)
    with pytest.raises(ConfigError, match="no more"), Namespaces(2):
        pass
    assert mine() == []


@needs_links
def test_what_a_killed_run_left_is_removed_and_nothing_of_a_living_one():
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, kept = f"rpbench{dead.pid}rank0", f"rpbench{os.getppid()}rank9"
    try:
        for name in (left, kept):
            subprocess.run(["ip", "netns", "add", name], check=True)
        assert left in remove_leftovers()
        assert left not in namespaces() and kept in namespaces()
    finally:
        subprocess.run(["ip", "netns", "del", kept], check=True)


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"need root.*links=\[none\]"), Namespaces(2):
        pass


def test_without_iproute2_it_says_so(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda tool: None)
    with pytest.raises(ConfigError, match=r"need ip and tc \(iproute2\)"), Namespaces(2):
        pass


def test_loopback_needs_nothing():
    with Loopback(2) as network:
        assert network.prefix(0) == []
        assert len(network.sent()) == 2


@needs_links
def test_ctrl_c_leaves_nothing_behind(tmp_path):
    words = [
        "bench",
        "compare",
        "links=[1gbit]",
        "ids=[skewed]",
        "rows=100",
        "dim=8",
        "batch_size=8",
        f"out={tmp_path}",
    ]
    # SIGINT ignored, as by a shell for what it runs in the background.
    run = subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", "recpipe.cli.main", *words,
         "blocks=100000", "contestants=['window:2x1:m1:step']"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    own = f"rpbench{run.pid}"
    try:
        deadline = time.monotonic() + 60
        while not any(_runs_in(name) for name in namespaces() if name.startswith(f"{own}rank")):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.1)
        ranks = [pid for name in namespaces() if name.startswith(f"{own}rank") for pid in _runs_in(name)]
        run.send_signal(2)
        _, said = run.communicate(timeout=30)
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert not [name for name in namespaces() if name.startswith(own)]
    assert not [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]


def _runs_in(name: str) -> list[str]:
    return subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
