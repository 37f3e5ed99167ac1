"""Workers of a run: starts local ones with torch's elastic launcher, or uses those of torchrun or SLURM.

`launch_workers` gives the exit code, or raises the error of the first rank that failed; the others' go to files.
Importing this module does not import torch.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recpipe.errors import ConfigError
from recpipe.train.failures import AlreadyReported, death, is_lost_peer, record, recorded, to_error
from recpipe.train.logs import log_plainly
from recpipe.train.slurm import slurm_environment

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
# A rank that lost a peer waits this long before it goes, so that the rank that failed is seen first.
_GRACE_SECONDS = 10.0


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


def launch_workers(function: Callable[..., int], nproc: int, *args: Any) -> int:
    """Calls ``function(*args)`` on every worker.

    Args:
        function: importable by name; gives an exit code.
        nproc: local workers to start, unless torchrun or SLURM has started some; 1 runs in this process.
        args: picklable.

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
        with _environment(found):
            return _run_found(function, args)
    if nproc == 1:
        with _environment(_alone()):
            return int(function(*args))
    return _run_local(function, nproc, args)


def _alone() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port = probe.getsockname()[1]
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port)}
    return variables | _local_defaults()


def _local_defaults() -> dict[str, str]:
    """Variables of purely local runs: the user's own where set."""
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {key: os.environ.get(key, value) for key, value in defaults.items()}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for a while: a sweep runs several jobs in one process."""
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _run_found(function: Callable[..., int], args: tuple[Any, ...]) -> int:
    """Runs as one of the workers that torchrun or SLURM started; only the first failing one says why."""
    try:
        return int(function(*args))
    except Exception as error:
        if worker_environment().world > 1:
            if is_lost_peer(error):
                time.sleep(_GRACE_SECONDS)
            if not _claim_failure():
                raise AlreadyReported("another rank failed first") from None
        raise


def _claim_failure() -> bool:
    """Whether this rank is the first to fail; true if nobody can tell."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=2))
        return int(store.add("recpipe/failure", 1)) == 1
    except (RuntimeError, KeyError, ValueError):
        return True


def _run_local(function: Callable[..., int], nproc: int, args: tuple[Any, ...]) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    folder = Path(tempfile.mkdtemp(prefix="recpipe-workers-"))
    keep = False
    try:
        with _environment(_local_defaults()), _signals_restored(), _elastic_quiet():
            return _elastic(function, nproc, args, folder)
    except ChildFailedError as error:
        _show_cursor()
        rank, failure = error.get_first_failure()
        said = recorded(folder)
        keep = not said or not said[0].expected
        silent = rank not in {one.rank for one in said}
        if not said or (said[0].lost_peer and silent):
            raise death(rank, failure.exitcode, _log_of(folder, rank)) from None
        raise to_error(said[0]) from None
    except SignalException as error:
        _show_cursor()
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        print(f"stopped by {error.sigval.name}", file=sys.stderr)
        raise SystemExit(128 + error.sigval) from None
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _elastic(function: Callable[..., int], nproc: int, args: tuple[Any, ...], folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_LOOPBACK}:0",
        local_addr=_LOOPBACK,
        max_restarts=0,
        start_method="spawn",
        # Rank 0 keeps the terminal, for its progress bar.
        logs_specs=DefaultLogsSpecs(str(folder), redirects={rank: Std.ALL for rank in range(1, nproc)}),
    )
    results = elastic_launch(config, _worker_main)(function, (str(folder),), args)
    return max(int(code) for code in results.values())


def _worker_main(function: Callable[..., int], folder: tuple[str], args: tuple[Any, ...]) -> int:
    """A local worker's life. Only the launcher reports, so an error goes to a file."""
    # The launcher ends its workers; a trace from each of them would hide why.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log_plainly()
    try:
        return int(function(*args))
    except Exception as error:
        failure = record(error, worker_environment().rank, Path(folder[0]))
        if failure.lost_peer:
            time.sleep(_GRACE_SECONDS)
    sys.stdout.flush()
    # Not sys.exit: it waits for threads and process groups that may wait for the lost peer.
    os._exit(1)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The elastic launcher leaves its signal handlers behind."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def _elastic_quiet() -> Iterator[None]:
    """The launcher's own log repeats every failure with a trace; ours are said once."""
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing.spawn")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, one.propagate) for one in loggers]
    quiet = logging.NullHandler()
    for one in loggers:
        one.propagate = False
        one.addHandler(quiet)
    try:
        yield
    finally:
        for one, propagate in before:
            one.propagate = propagate
            one.removeHandler(quiet)


def _log_of(folder: Path, rank: int) -> Path | None:
    """What a rank printed on stderr, if it is in a file and not empty."""
    logs = [path for path in folder.glob(f"*/attempt_0/{rank}/stderr.log") if path.stat().st_size]
    return logs[0] if logs else None


def _show_cursor() -> None:
    """A progress bar that was cut off has left the cursor hidden."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()
