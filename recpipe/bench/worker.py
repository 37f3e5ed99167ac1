"""One rank of a contestant: builds it, then answers requests, one line of JSON each way, until its input ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist

from recpipe.bench.machine import Machine
from recpipe.bench.recpipe_side import RecpipeSide
from recpipe.bench.settings import TORCHREC, Contestant, Workload
from recpipe.bench.torchrec_side import TorchRecSide
from recpipe.comm.connecting import join

Request = dict[str, Any]
_TIMEOUT = timedelta(seconds=300)


def main(work: dict[str, Any]) -> None:
    """Serves one rank.

    Args:
        work: of `recpipe.bench.ranks.Ranks`: rank, process of the command, store, contestant, workload.
    """
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    if os.getppid() != work["command"]:
        return  # It ended while this process was still importing.
    replies = _own_stdout()
    contestant = Contestant(**{**work["contestant"], "settings": tuple(work["contestant"]["settings"])})
    workload = Workload(**work["workload"])
    torch.set_num_threads(1)
    store = dist.FileStore(work["store"], workload.ranks)
    join(store, work["rank"], workload.ranks, _TIMEOUT)
    side = make_side(contestant, workload)
    handlers: dict[str, Callable[..., dict[str, Any]]] = {
        "block": lambda **sizes: run_block(side, **sizes),
        **side.requests,
    }
    _say(replies, {})
    for line in sys.stdin:
        request = json.loads(line)
        _say(replies, handlers[request.pop("request")](**request))
    # Not a return: it would wait for process groups whose other ends may be gone.
    os._exit(0)


def make_side(contestant: Contestant, workload: Workload) -> Any:
    """Whoever trains, or who measures the machine."""
    if contestant.kind == "machine":
        return Machine(workload)
    if contestant.kind in TORCHREC:
        return TorchRecSide(contestant, workload)
    return RecpipeSide(contestant, workload)


def run_block(side: Any, warmup: int, steps: int) -> dict[str, Any]:
    """Runs steps and times the later ones.

    Returns:
        ``seconds`` of a timed step in the mean, ``peak`` resident bytes since the process began, ``sent``: bytes by purpose of
        all the steps together, as the contestant itself counts them (empty if it does not).
    """
    before = dict(side.sent())
    for _ in range(warmup):
        side.step()
    start = time.perf_counter()
    for _ in range(steps):
        side.step()
    seconds = (time.perf_counter() - start) / steps
    sent = {purpose: count - before.get(purpose, 0) for purpose, count in side.sent().items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "sent": sent, "peak": peak}


def _own_stdout() -> IO[str]:
    """A stream for replies alone; whatever else is printed goes to the log."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def _say(replies: IO[str], reply: dict[str, Any]) -> None:
    print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
