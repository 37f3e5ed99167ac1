"""Functions that `launch_workers` runs in the tests, and the program that calls them by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from recpipe.cli.failure import guarded
from recpipe.comm.connecting import join
from recpipe.errors import ConfigError, TrainingError
from recpipe.train.launch import launch_workers, worker_environment
from recpipe.train.rendezvous import meet


def _join() -> int:
    store, rank, world = meet(timedelta(seconds=60))
    join(store, rank, world, timedelta(seconds=60))
    return rank


def total(folder: str) -> int:
    """Every rank adds its number; the sum goes to a file."""
    rank = _join()
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    seen = worker_environment()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    text = f"{seen.rank} {seen.world} {value.item():g} {' '.join(os.environ.get(name, '-') for name in names)}"
    (Path(folder) / f"rank{rank}").write_text(text)
    dist.destroy_process_group()
    return 0


def total_then_rank(folder: str) -> int:
    """As `total`; the exit code is the rank."""
    return total(folder) + worker_environment().rank


def user_error(folder: str) -> int:
    """Rank 1 fails in a way that is foreseen; rank 0 waits for it in a collective."""
    if _join() == 1:
        raise TrainingError("the loss is not finite at step 7")
    dist.all_reduce(torch.ones(1))
    return 0


def config_error(folder: str) -> int:
    """All ranks find the same wrong setting."""
    _join()
    raise ConfigError("batch_size=0: must be at least 1")


def bug(folder: str) -> int:
    """Rank 1 fails in a way that nobody foresaw."""
    if _join() == 1:
        {}["nowhere"]
    dist.all_reduce(torch.ones(1))
    return 0


def killed(folder: str) -> int:
    """Rank 1 is killed from outside."""
    if _join() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    return 0


def endless(folder: str) -> int:
    """All ranks say who they are and stay."""
    rank = _join()
    (Path(folder) / f"pid{rank}").write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)


def lonely(folder: str) -> int:
    """Rank 0 joins; the others never do."""
    rank = worker_environment().rank
    (Path(folder) / f"joining{rank}").touch()
    if rank == 0:
        _join()
    time.sleep(600)
    return 0


if __name__ == "__main__":
    from tests.cli import workers

    chosen = getattr(workers, sys.argv[1])
    sys.exit(guarded(lambda: launch_workers(chosen, int(sys.argv[2]), sys.argv[3])))
