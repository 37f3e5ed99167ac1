"""A process that has imported what workers need, and that they are copies of: it imports beside the launcher, and once for all.

Python's fork server does the work. It has one thread and no process group, so its copies are as good as new processes.
Importing this module does not import torch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver, resource_tracker, util
from typing import Final

from recpipe.train.interrupt import KINDS

METHOD: Final = "forkserver"
_IMPORTED = ["recpipe.train.warm_server"]
STARTED = "RECPIPE_STARTED"


def warm_up() -> None:
    """Starts that process, unless it is there; on the main thread. It ends with this process and its workers.

    It takes no signal of a terminal or a process group: it would end with a trace, and nobody would learn how its workers end.
    They stay blocked in it and in its copies, until a worker is ready for them (`local_worker`); none is lost here meanwhile.
    """
    multiprocessing.set_forkserver_preload(_IMPORTED)
    # Python before 3.10.9 would put its socket where every user of the machine can reach it.
    util.abstract_sockets_supported = False  # type: ignore[misc]
    # It lifts the block when it starts its own process.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, KINDS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def note_start() -> None:
    """The user's command begins now, unless whoever calls it has said when."""
    os.environ.setdefault(STARTED, repr(time.time()))


def noted_start() -> dict[str, str]:
    """The variable that says when, for workers; later jobs of the same command have none."""
    started = os.environ.pop(STARTED, None)
    return {} if started is None else {STARTED: started}


def seconds_since_start() -> float | None:
    """Since the user's command began; None for any but its first job and for workers that were started again."""
    started = noted_start()
    return time.time() - float(started[STARTED]) if started else None
