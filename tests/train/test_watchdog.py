"""Who keeps the others waiting: the silent one, the one that stands elsewhere than in a collective, or nobody."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple

import pytest

from recpipe.cli.main import main
from recpipe.train.watchdog import Beat, Watchdog, describe
from tests.train.test_finished import SMALL

SECONDS = 0.4


class Shelf:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]


@contextmanager
def peer(shelf: Shelf, rank: int, action: str, waits: bool, alive: bool = True) -> Iterator[None]:
    """A rank that has stood in `action` for a long time; one that is not alive has told so once."""
    over = threading.Event()

    def tell(count: int) -> None:
        shelf.set(f"recpipe/beat/0/{rank}", json.dumps(astuple(Beat(count, action, waits, 100.0 if alive else 0.1))))

    def go_on() -> None:
        count = 1
        while alive and not over.wait(0.02):
            count += 1
            tell(count)

    tell(0)
    thread = threading.Thread(target=go_on)
    thread.start()
    yield
    over.set()
    thread.join()


def complaint(shelf: Shelf, world: int, wait: Callable[[float], object]) -> list[str]:
    """What rank 0 says while its main thread stands in `wait`."""
    said: list[str] = []
    with Watchdog(0, world, SECONDS, lambda: 7, said.append, shelf):
        wait(6 * SECONDS)
    return said


@pytest.fixture
def in_a_collective(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], object]:
    monkeypatch.setattr("recpipe.train.watchdog.describe", lambda calls: ("comm/lane.py wait", True))
    return time.sleep


def test_a_silent_rank(in_a_collective):
    shelf = Shelf()
    with peer(shelf, 1, "step 7, a", True), peer(shelf, 2, "step 6, data/order.py rows", False, alive=False):
        said = complaint(shelf, 3, in_a_collective)
    assert len(said) == 1
    assert said[0].startswith("rank 2 has been silent for ") and said[0].endswith(
        "last it was at step 6, data/order.py rows"
    )


def test_a_rank_that_hangs_elsewhere(in_a_collective):
    shelf = Shelf()
    with peer(shelf, 1, "step 6, data/order.py rows", False), peer(shelf, 2, "step 7, a", True):
        assert complaint(shelf, 3, in_a_collective) == [
            "rank 1 has not moved for 100 s from step 6, data/order.py rows"
        ]


def test_ranks_that_wait_for_each_other(in_a_collective):
    shelf = Shelf()
    with peer(shelf, 1, "step 6, comm/groups.py sum_cpu", True):
        said = complaint(shelf, 2, in_a_collective)
    assert said == [
        "all ranks wait for each other; rank 0: step 7, comm/lane.py wait; rank 1: step 6, comm/groups.py sum_cpu"
    ]


def test_a_rank_that_works_complains_of_nobody():
    """It stands still, too, but not in a collective: its own calls are what others see."""
    shelf = Shelf()
    with peer(shelf, 1, "step 7, a", True):
        assert complaint(shelf, 2, time.sleep) == []
    beat = Beat(*json.loads(shelf.values["recpipe/beat/0/0"]))
    assert not beat.waits and beat.still >= SECONDS


def test_a_rank_that_moves_is_not_still(in_a_collective):
    shelf = Shelf()

    def move(seconds: float) -> None:
        end, pause = time.monotonic() + seconds, random.Random(1)
        while time.monotonic() < end:
            time.sleep(pause.random() / 30)
            time.sleep(pause.random() / 30)

    with peer(shelf, 1, "step 7, a", True):
        assert complaint(shelf, 2, move) == []


def test_places_in_words():
    executor, lane = ("/x/recpipe/runtime/executor.py", "_lookup"), ("/x/recpipe/comm/lane.py", "wait")
    assert describe([("/x/recpipe/train/loop.py", "run"), executor, lane]) == ("runtime/executor.py _lookup", True)
    assert describe([executor, ("/y/torch/nn/modules/linear.py", "forward")]) == ("runtime/executor.py _lookup", False)
    gather = [
        ("/y/torch/distributed/c10d_logger.py", "wrapper"),
        ("/y/torch/distributed/distributed_c10d.py", "gather"),
    ]
    assert describe([executor, *gather]) == ("runtime/executor.py _lookup", True)


@pytest.mark.parametrize("command", ["train", "eval", "score", "verify"])
def test_every_command_whose_ranks_wait_is_watched(command, tmp_path, monkeypatch):
    entered = []

    class Recorder(Watchdog):
        def __enter__(self) -> Watchdog:
            entered.append(self._step())
            return super().__enter__()

    trained = f"checkpoint={tmp_path / 'run' / 'checkpoints' / 'final'}"
    train = [*SMALL, f"run.dir={tmp_path / 'run'}"]
    words = {
        "train": train,
        "eval": [trained, "launch.nproc=1"],
        "score": [trained, "launch.nproc=1", "input=test", f"output={tmp_path / 'scores'}"],
        "verify": [*(word for word in SMALL if not word.startswith("log")), "steps=2", f"run.dir={tmp_path / 'verify'}"],
    }
    if command in ("eval", "score"):
        assert main(["train", *train]) == 0
    monkeypatch.setattr("recpipe.train.ranks.Watchdog", Recorder)
    assert main([command, *words[command]]) in (0, 1)
    assert entered == [0]
