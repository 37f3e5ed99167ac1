"""Case 121: nothing that a local command starts listens where anybody else could reach it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_launch import environment
from tests.sockets import Watch, is_private, listeners
from tests.train.jobs import SMALL

SETTINGS = [*(f"{key}={value}" for key, value in SMALL.items()), "data.num_train=66", "model.dense_arch_layer_sizes=[16,8]"]
RUN_ALL = """
import json, pathlib, sys
from recpipe.cli.main import main
for name, words in json.loads(sys.argv[1]):
    pathlib.Path("now").write_text(name)
    code = main([name, *words])
    assert code == 0, (name, code)
pathlib.Path("now").write_text("")
"""
COMMANDS = [
    ("train", [*SETTINGS, "launch.nproc=2", "run.dir=run"]),
    ("eval", ["checkpoint=run/checkpoints/final", "launch.nproc=2"]),
    ("score", ["checkpoint=run/checkpoints/final", "launch.nproc=2", "input=test", "output=scores.txt"]),
    ("verify", [*SETTINGS, "launch.nproc=2", "steps=2", "run.dir=verify"]),
    ("profile", [*SETTINGS, "launch.nproc=2", "output=profile.json"]),
    ("plan", [*SETTINGS, "planner.out=plan", "planner.sensitivity=false"]),
    (
        "bench",
        ["compare", "ids=[skewed]", "rows=200", "dim=8", "batch_size=32", "blocks=1", "steps=1", "warmup=1",
         "links=[none]", 'contestants=["window:2x1:m1:ahead"]', "out=bench"],
    ),
    ("doctor", []),
]  # fmt: skip
# Ranks that exchange anything have gloo's sockets; a plan is made by one process.
ALONE = {"plan", "doctor"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What each command listened on, as the kernel knew it while it ran; the user has named an outer interface."""
    folder = tmp_path_factory.mktemp("sockets")
    now = folder / "now"
    now.touch()
    variables = environment(GLOO_SOCKET_IFNAME=_outer_interface())
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN_ALL, json.dumps(COMMANDS)], cwd=folder, env=variables, stdout=log, stderr=log
        )
        with Watch(process.pid, now.read_text) as watch:
            assert process.wait() == 0, (folder / "log").read_text()[-2000:]
    return watch.found


@pytest.mark.parametrize("command", [name for name, _ in COMMANDS])
def test_nothing_listens_but_on_loopback(seen: dict[str, set[str]], command: str) -> None:
    places = seen[command]
    assert command in ALONE or {"tcp 127.0.0.1", "tcp ::1"} & places, "nothing was seen: the test is blind"
    assert not [place for place in places if not is_private(place)]


def test_what_listens_elsewhere_is_seen(tmp_path: Path) -> None:
    """The negative control."""
    planted = (
        "import socket; one = socket.socket(); one.bind(('0.0.0.0', 0)); one.listen();"
        "two = socket.socket(socket.AF_UNIX); two.bind(chr(0) + 'recpipe-test'); two.listen(); input()"
    )
    with subprocess.Popen([sys.executable, "-c", planted], stdin=subprocess.PIPE) as process:
        with Watch(os.getpid(), lambda: "planted") as watch:
            while len([place for place in tuple(watch.found["planted"]) if not is_private(place)]) < 2:
                assert process.poll() is None
        process.communicate(b"\n")
    assert {"tcp 0.0.0.0", "unix @recpipe-test"} <= watch.found["planted"]


def test_addresses_of_the_kernel_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert listeners()[str(os.fstat(one.fileno()).st_ino)] == "tcp 127.0.0.1"


def _outer_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name != "lo"), "lo")
