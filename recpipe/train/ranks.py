"""The life of a worker's process groups: made before its work, and gone, with their threads, before it leaves."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from recpipe.comm import Groups
from recpipe.train.interrupt import FORWARDED
from recpipe.train.launch import fail_now
from recpipe.train.leaving import Stopped, signals_raise
from recpipe.train.local_worker import worker_folder
from recpipe.train.setup import init_processes
from recpipe.train.watchdog import Watchdog

EXIT_INTERRUPTED = 130


def on_ranks(work: Callable[[Any, Groups], int], cfg: Any) -> int:
    """Calls ``work(cfg, groups)`` on this rank and gives its exit code; collective. Only rank 0 speaks.

    Args:
        cfg: with `launch`, a `recpipe.train.config.LaunchConfig`.
    """
    groups = init_processes(cfg.launch)
    if groups.rank:
        logging.getLogger("recpipe").setLevel(logging.ERROR)
    try:
        with _leaving(groups.world):
            code = work(cfg, groups)
    except BaseException:
        # More ranks than one leave by the error, and others may still wait; alone, this process goes on to another job.
        if groups.world == 1:
            dist.destroy_process_group()
        raise
    groups.barrier()
    dist.destroy_process_group()
    # That forgets groups, but does not end them: their threads and sockets live while somebody holds one, and a run's objects
    # lie in cycles. They have to end while the other ranks are still there and Python is still whole.
    del groups
    gc.collect()
    return code


@contextmanager
def _leaving(world: int) -> Iterator[None]:
    """Signals end what keeps nothing (training takes them itself); files that are half written go first.

    One of several ranks then leaves at once: its threads and groups may wait for ranks that have left before.
    """
    try:
        with signals_raise((FORWARDED,) if worker_folder() is not None else None):
            yield
    except (KeyboardInterrupt, Stopped) as leaving:
        if world == 1:
            raise
        sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED if isinstance(leaving, KeyboardInterrupt) else int(leaving.code or 1))


def watch(cfg: Any, groups: Groups, step: Callable[[], int]) -> Watchdog:
    """To be entered while ranks wait for each other, but not while one prepares something alone.

    Args:
        step: gives the step at hand.
    """
    return Watchdog(groups.rank, groups.world, cfg.launch.watchdog_seconds, step, fail_now)
