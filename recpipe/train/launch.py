"""Workers of a run: starts local ones (`launch_local`), or uses those of torchrun or SLURM.

`launch_workers` gives the exit code, or raises the error of the first rank that failed; the others' go to files.
Importing this module does not import torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recpipe.errors import ConfigError
from recpipe.train.failures import AlreadyReported, WorkerError, is_lost_peer, record
from recpipe.train.launch_local import environment, local_defaults, run_local
from recpipe.train.local_worker import GRACE_SECONDS, worker_folder
from recpipe.train.rendezvous import connect, number_of_start
from recpipe.train.slurm import slurm_environment


@dataclass(frozen=True)
class WorkerEnvironment:
    """This process among the workers."""

    rank: int
    world: int
    local_rank: int


def worker_environment() -> WorkerEnvironment:
    """Which worker this process is; the only one outside a launch."""
    found = found_workers(os.environ) or {}
    return WorkerEnvironment(
        *(int(found.get(key, d)) for key, d in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    )


def found_workers(environ: Mapping[str, str]) -> dict[str, str] | None:
    """torch's variables for workers that exist already; None if there are none.

    Args:
        environ: under torchrun it has them; under SLURM they follow from its own.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return {key: environ[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if key in environ}
    return slurm_environment(environ)


def launch_workers(function: Callable[..., int], nproc: int, *args: Any, max_restarts: int = 0) -> int:
    """Calls ``function(*args)`` on every worker.

    Args:
        function: importable by name; gives an exit code.
        nproc: local workers to start, unless torchrun or SLURM has started some; 1 runs in this process.
        args: picklable.
        max_restarts: times that local workers are started again after one has died; see `launch_local.restarted_run`.

    Returns:
        The largest exit code.

    Raises:
        RecpipeError: what the first failing rank raised, or how it died.
        KeyboardInterrupt: after Ctrl-C, when all workers have ended.
    """
    if nproc < 1:
        raise ConfigError(f"launch.nproc={nproc}: must be at least 1")
    found = found_workers(os.environ)
    if found is not None:
        with environment(found):
            return _run_found(function, args)
    if nproc == 1:
        with environment(_alone()):
            return int(function(*args))
    return run_local(function, nproc, args, max_restarts)


def _alone() -> dict[str, str]:
    return {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | local_defaults()


def _run_found(function: Callable[..., int], args: tuple[Any, ...]) -> int:
    """Runs as one of the workers that torchrun or SLURM started; only the first failing one says why."""
    try:
        return int(function(*args))
    except Exception as error:
        if worker_environment().world > 1:
            if is_lost_peer(error):
                time.sleep(GRACE_SECONDS)
            if not _claim_failure():
                raise AlreadyReported("another rank failed first") from None
        raise


def _claim_failure() -> bool:
    """Whether this rank is the first to fail; true if nobody can tell."""
    store = connect(2)
    try:
        return store is None or int(store.add(f"recpipe/failure/{number_of_start()}", 1)) == 1
    except RuntimeError:
        return True


def fail_now(message: str) -> None:
    """Ends this worker from any thread, with an error that the user gets to see once; the main thread may be stuck."""
    rank, folder = worker_environment().rank, worker_folder()
    if folder is not None:
        record(WorkerError(message), rank, folder)
    elif _claim_failure():
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
