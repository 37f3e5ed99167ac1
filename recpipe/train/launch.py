"""Runs a function on every rank: on the workers found (torchrun, SLURM), in this process, or on local workers it starts.

Local workers run under torch's elastic launcher, without restarts. What comes out of a launch is one exit code or one
error: that of the rank that failed first.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recpipe.errors import ConfigError, RecpipeError
from recpipe.train.failure import UnexpectedError, unexpected
from recpipe.train.found import Found, find_workers
from recpipe.train.worker import (
    NOTES_VARIABLE,
    WorkerError,
    read_errors,
    read_run_dir,
    run_worker,
    wait_if_lost,
)

logger = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def launch_workers(fn: Callable[..., int], nproc: int, *args: Any) -> int:
    """Calls ``fn(*args)`` on every rank and gives the largest exit code.

    Args:
        fn: importable by name; joins the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, or
            makes one of a single rank where they are not set.
        nproc: local workers to start; not used where workers are found.
        args: picklable.

    Raises:
        RecpipeError: the first failing rank's error; an unexpected one says where its trace is.
        KeyboardInterrupt: on Ctrl-C, when the workers have ended.
    """
    if nproc < 1:
        raise ConfigError(f"launch.nproc={nproc}: must be at least 1")
    found = find_workers()
    with _notes() as notes:
        if found is not None:
            return _run_found(found, notes, fn, args)
        return _run_here(notes, fn, args) if nproc == 1 else _run_local(nproc, notes, fn, args)


def _run_here(notes: Path, fn: Callable[..., int], args: tuple[Any, ...]) -> int:
    """In this process, as the only rank."""
    with _environment({NOTES_VARIABLE: str(notes)}):
        try:
            return fn(*args)
        except RecpipeError:
            raise
        except Exception as exception:
            error = WorkerError.of(exception, 0)
            raise unexpected(error.message, error.trace, read_run_dir(notes)) from exception


def _run_found(found: Found, notes: Path, fn: Callable[..., int], args: tuple[Any, ...]) -> int:
    """In this process, as one of the ranks that others started."""
    if found.rank == 0:
        logger.info("using the %d workers that %s started", found.world, found.by)
    with _environment({**found.variables, NOTES_VARIABLE: str(notes)}):
        try:
            return fn(*args)
        except Exception as exception:
            error = WorkerError.of(exception, found.rank)
            wait_if_lost(error)
            if error.lost_contact:
                raise UnexpectedError(f"rank {found.rank} lost contact with another rank, whose error says why") from None
            raise _shown(error, found.world, read_run_dir(notes)) from exception


def _run_local(nproc: int, notes: Path, fn: Callable[..., int], args: tuple[Any, ...]) -> int:
    """On workers of this machine, started and watched by torch's elastic launcher."""
    with _environment(_worker_environment()), _signals_restored():
        # Its messages are about agents and rendezvous; the errors come from the notes.
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            run_id=f"recpipe-{os.getpid()}",
            max_restarts=0,
            monitor_interval=0.05,
            shutdown_timeout=10,
            logs_specs=DefaultLogsSpecs(log_dir=str(notes / "elastic")),
        )
        try:
            codes = elastic_launch(config, run_worker)(fn, str(notes), args)
        except ChildFailedError as failed:
            raise _first_error(failed, nproc, notes) from None
        except SignalException as caught:
            if caught.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            sys.exit(128 + caught.sigval)
        finally:
            _show_cursor()
            _keep_logs(notes)
    return max(codes.values())


def _first_error(failed: Any, nproc: int, notes: Path) -> RecpipeError | KeyboardInterrupt:
    errors = read_errors(notes)
    if errors and not errors[0].lost_contact:
        return _shown(errors[0], nproc, read_run_dir(notes))
    rank, failure = failed.get_first_failure()
    if failure.exitcode in (-signal.SIGINT, 128 + signal.SIGINT):
        return KeyboardInterrupt()
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        cure = "; SIGKILL mostly means that memory ran out: see the kernel's log" if name == "SIGKILL" else ""
        return UnexpectedError(f"rank {rank} of {nproc} was ended by {name}{cure}")
    if errors:
        return _shown(errors[0], nproc, read_run_dir(notes))
    return UnexpectedError(f"rank {rank} of {nproc} ended with exit code {failure.exitcode} and no message")


def _shown(error: WorkerError, world: int, run_dir: Path | None) -> RecpipeError:
    """A worker's error as the user sees it."""
    if error.kind == "config":
        return ConfigError(error.message)
    message = error.message if world == 1 else f"rank {error.rank} of {world}: {error.message}"
    if error.kind == "expected":
        return RecpipeError(message)
    return unexpected(message, error.trace, run_dir)


def _keep_logs(notes: Path) -> None:
    """What ranks other than 0 printed goes to the run directory."""
    run_dir = read_run_dir(notes)
    for log in sorted(notes.glob("rank*.log")):
        if run_dir is not None and run_dir.is_dir() and log.stat().st_size:
            (run_dir / "logs").mkdir(exist_ok=True)
            (run_dir / "logs" / log.name).write_bytes(log.read_bytes())


def _worker_environment() -> dict[str, str]:
    """For workers that share a machine: one thread each until they say otherwise, loopback, no chatter."""
    wanted = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "LOGLEVEL": "CRITICAL"}
    if "lo" in (name for _, name in socket.if_nameindex()):
        wanted["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def _show_cursor() -> None:
    """A worker that was ended while it drew a progress bar has left the cursor hidden."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()


@contextmanager
def _notes() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="recpipe-launch-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The elastic launcher leaves its handlers behind."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
