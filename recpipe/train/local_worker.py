"""The life of one local worker, from its first instruction to its exit code, and what it tells its launcher in files.

A worker of a fork server begins with the launcher's signals blocked (`warm`): none is lost while it starts. Importing this
module does not import torch.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recpipe.train.failures import record
from recpipe.train.interrupt import FORWARDED, KINDS
from recpipe.train.logs import log_plainly

# A rank that lost a peer waits this long before it goes, so that the rank that failed is seen first.
GRACE_SECONDS = 10.0
FOLDER = "RECPIPE_WORKER_FOLDER"
_PR_SET_PDEATHSIG = 1


def worker_folder() -> Path | None:
    """Directory in which this launcher's workers leave word; None for the workers of another launcher."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


def hear_of_parents_end(number: signal.Signals) -> None:
    """Has the kernel send this process a signal when the process that started it ends. Linux only, elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def worker_main(function: Callable[..., int], variables: Mapping[str, str], *args: Any) -> None:
    """Calls ``function(*args)`` in a new process. Only the launcher reports, so an error goes to a file.

    Args:
        function: the work; gives an exit code, which `exit_code_of` reads.
        variables: what the environment has to have beside that of the fork server.
        args: its arguments.
    """
    os.environ.update(variables)
    rank, folder = int(os.environ["RANK"]), worker_folder()
    assert folder is not None
    _take_signals()
    if rank:
        _print_into(folder / f"rank{rank}.log")
    log_plainly()
    try:
        _code_file(folder, rank).write_text(str(int(function(*args))))
        return
    except Exception as error:
        failure = record(error, rank, folder)
        if failure.lost_peer:
            time.sleep(GRACE_SECONDS)
    sys.stdout.flush()
    # Not sys.exit: it waits for threads and process groups that may wait for the lost peer.
    os._exit(1)


def exit_code_of(folder: Path, rank: int) -> int | None:
    """Exit code of a worker whose work was done; None for one that failed or died."""
    path = _code_file(folder, rank)
    return int(path.read_text()) if path.exists() else None


def log_of(folder: Path, rank: int) -> Path | None:
    """What a rank printed, if it is in a file and not empty."""
    log = folder / f"rank{rank}.log"
    return log if log.exists() and log.stat().st_size else None


def _code_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.code"


def _take_signals() -> None:
    """The launcher passes signals on; its end is told by the fork server's, whose end the kernel tells."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hear_of_parents_end(FORWARDED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KINDS)
    launcher = multiprocessing.parent_process()
    # It may have ended before the kernel was asked.
    if launcher is not None and not launcher.is_alive():
        os._exit(1)


def _print_into(path: Path) -> None:
    """Rank 0 keeps the terminal, for its progress bar."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
