"""How the ranks of a start find each other: the number of the start (case 171), and a local run without a port (case 121)."""

from __future__ import annotations

import stat
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from recpipe.errors import TrainingError
from recpipe.train import local_worker, rendezvous
from recpipe.train.launch_local import local_defaults
from recpipe.train.rendezvous import FolderStore, agree_on_start

PATIENCE = timedelta(seconds=60)


def start(store: dist.Store, pool: ThreadPoolExecutor, ranks: range) -> list[Future[int]]:
    return [pool.submit(agree_on_start, store, rank, 4, PATIENCE) for rank in ranks]


def test_every_start_has_one_number_on_all_ranks():
    """Case 171: the store outlives the ranks, and nodes count their starts differently."""
    store = dist.HashStore()
    with ThreadPoolExecutor(4) as pool:
        for number in range(3):
            assert [one.result() for one in start(store, pool, range(4))] == [number] * 4


def test_a_node_that_starts_again_waits_for_the_others():
    """Case 171: node b is started again at once, node a when it has noticed; rank 0 comes last."""
    store = dist.HashStore()
    with ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in start(store, pool, range(4))] == [0] * 4
        early = start(store, pool, range(2, 4))
        assert not any(one.done() for one in early)
        assert [one.result() for one in [*start(store, pool, range(2)), *early]] == [1] * 4


def test_a_rank_that_died_while_ranks_met_is_not_waited_for():
    """Case 171: its word is in the store and was in no start."""
    store = dist.HashStore()
    store.set("recpipe/new/3", "of-the-dead 7")
    with ThreadPoolExecutor(4) as pool:
        found = start(store, pool, range(3))
        while not store.check(["recpipe/new/2"]):
            time.sleep(0.01)
        assert [one.result() for one in [*found, *start(store, pool, range(3, 4))]] == [0] * 4


@pytest.mark.parametrize(("rank", "said"), [(0, r"of 2 ranks, \[1\] have not come"), (1, "rank 0 has not come")])
def test_a_wait_for_ranks_has_an_end(rank, said):
    """Case 163."""
    with pytest.raises(TrainingError, match=rf"{said} within launch\.timeout_seconds"):
        agree_on_start(dist.HashStore(), rank, 2, timedelta(seconds=0.2))


def test_local_ranks_share_a_file(tmp_path, monkeypatch):
    """Case 121: no port, whatever the environment says of a master."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", local_worker.FOLDER: str(tmp_path), "MASTER_ADDR": "203.0.113.1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "rendezvous", None)
    store, rank, world = rendezvous.meet(PATIENCE)
    assert (type(store), rank, world) == (dist.FileStore, 0, 2)
    assert type(rendezvous.board(1.0)) is FolderStore


def test_the_directory_of_a_local_run_is_this_users_alone(tmp_path, monkeypatch):
    from recpipe.train import launch_local

    seen: list[Path] = []
    monkeypatch.setattr(launch_local.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch_local, "_attempts", lambda *args: seen.append(args[4]) or stat.S_IMODE(args[4].stat().st_mode))
    assert launch_local.run_local(print, 2, (), 0) == 0o700
    assert not seen[0].exists()


def test_a_local_run_takes_loopback_whatever_the_user_has_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert local_defaults()["GLOO_SOCKET_IFNAME"] == "lo"


def test_a_board_of_files(tmp_path):
    board = FolderStore(tmp_path)
    board.set("recpipe/beat/0/1", "one")
    board.set("recpipe/beat/0/1", "two")
    assert board.multi_get(["recpipe/beat/0/0", "recpipe/beat/0/1"]) == [b"", b"two"]
