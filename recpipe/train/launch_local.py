"""Workers on this machine, copies of a fork server, and started again when one has died.

The launcher is the only one who reports, and it imports no torch. It passes SIGTERM, SIGHUP and Ctrl-C on in a form of its
own, so that workers can finish their step and leave by themselves; a second one ends them. Workers find each other through
files in a directory that only this user may enter: no port is opened for it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from recpipe.errors import RecpipeError
from recpipe.train.failures import WorkerError, death, keep_traces, recorded, to_error
from recpipe.train.interrupt import FORWARDED, KINDS, SAME_SECONDS
from recpipe.train.local_worker import FOLDER, exit_code_of, log_of, worker_folder, worker_main
from recpipe.train.warm import METHOD, noted_start, warm_up

logger = logging.getLogger(__name__)

# After a failure the others get this long to go by themselves; one that is stopped never does.
_SHUTDOWN_SECONDS = 5
# What multiprocessing gives as the exit code of a worker whose fork server has ended.
_UNKNOWN = 255
_RUN_DIR = "run_dir"


def local_defaults() -> dict[str, str]:
    """Variables of purely local runs: threads and log level are the user's own where set, the interface is always loopback."""
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {key: os.environ.get(key, value) for key, value in defaults.items()} | {"GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
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


def note_run_dir(folder: Path) -> None:
    """Tells the launcher where the run lies: traces of failures go there, and a restart continues there."""
    words = worker_folder()
    if words is not None:
        (words.parent / _RUN_DIR).write_text(str(folder.resolve()))


def restarted_run() -> Path | None:
    """The run directory of the workers that died before these were started; None at the first start."""
    words = worker_folder()
    noted = None if words is None or words.name == "0" else words.parent / _RUN_DIR
    return Path(noted.read_text()) if noted is not None and noted.exists() else None


def start_early() -> None:
    """Begins to import what workers need; a command does it while its settings are not yet read."""
    with environment(local_defaults()):
        warm_up()


def run_local(function: Callable[..., int], nproc: int, args: tuple[Any, ...], max_restarts: int) -> int:
    """Calls ``function(*args)`` on `nproc` new processes.

    Raises:
        RecpipeError: what the first failing rank raised, or how it died, after the last restart.
        KeyboardInterrupt: after Ctrl-C, when all workers have ended.
    """
    with _Forwarding() as signals:
        base = Path(tempfile.mkdtemp(prefix="recpipe-workers-"))
        keep = False
        try:
            return _attempts(function, nproc, args, max_restarts, base, signals)
        except _Stopped:
            _show_cursor()
            raise signals.leaving() from None
        except WorkerError:
            keep = not (base / _RUN_DIR).exists()
            raise
        finally:
            if not keep:
                shutil.rmtree(base, ignore_errors=True)


def _attempts(
    function: Callable[..., int], nproc: int, args: tuple[Any, ...], restarts: int, base: Path, signals: _Forwarding
) -> int:
    for attempt in range(restarts + 1):
        try:
            return _attempt(function, nproc, args, base / str(attempt), signals)
        except WorkerError as error:
            if attempt == restarts or signals.number is not None:
                raise
            logger.warning("%s\nstarting all workers again, %d of %d", error, attempt + 1, restarts)
    raise AssertionError("unreachable")


def _attempt(
    function: Callable[..., int], nproc: int, args: tuple[Any, ...], folder: Path, signals: _Forwarding
) -> int:
    folder.mkdir()
    start_early()
    # Workers are copies of a process that was started earlier: what it cannot know is handed on.
    variables = {**local_defaults(), **noted_start(), FOLDER: str(folder)}
    variables |= {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
    with _Workers(folder, signals) as workers:
        for rank in range(nproc):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            workers.start(worker_main, (function, {**variables, **own}, *args))
        failed = workers.first_failure()
    if failed is None:
        return signals.exit_code or max(exit_code_of(folder, rank) or 0 for rank in range(nproc))
    if signals.number is not None and all(one.lost_peer for one in recorded(folder)):
        raise _Stopped
    _show_cursor()
    raise _cause(*failed, folder)


def _cause(rank: int, exit_code: int, folder: Path) -> RecpipeError:
    """The first failure, with its trace where the run lies."""
    noted = folder.parent / _RUN_DIR
    if noted.exists():
        folder = keep_traces(folder, Path(noted.read_text()) / "failures")
    said = recorded(folder)
    silent = rank not in {one.rank for one in said}
    if not said or (said[0].lost_peer and silent):
        return death(rank, exit_code, log_of(folder, rank))
    return to_error(said[0])


class _Stopped(BaseException):
    """Ends the launcher's work after a signal, wherever it is."""


class _Workers:
    """The processes of one attempt: none is left when it is exited.

    Args:
        folder: where they leave word.
        signals: told of each as soon as it lives.
    """

    def __init__(self, folder: Path, signals: _Forwarding) -> None:
        self._folder, self._signals = folder, signals
        self._processes: list[BaseProcess] = []

    def start(self, main: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Starts the next rank."""
        process = multiprocessing.get_context(METHOD).Process(target=main, args=args)
        process.start()
        self._processes.append(process)
        assert process.pid is not None
        self._signals.add(process.pid)

    def first_failure(self) -> tuple[int, int] | None:
        """Waits until all have done their work or one has not; gives its rank and exit code."""
        living = dict(enumerate(self._processes))
        while living:
            connection.wait([one.sentinel for one in living.values()])
            for rank, process in list(living.items()):
                if process.exitcode is not None:
                    del living[rank]
                    if exit_code_of(self._folder, rank) is None:
                        return rank, process.exitcode
        return None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.forget()
        for number, seconds in ((signal.SIGTERM, _SHUTDOWN_SECONDS), (signal.SIGKILL, None)):
            living = [one for one in self._processes if one.exitcode in (None, _UNKNOWN)]
            for process in living:
                assert process.pid is not None
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)
            deadline = time.monotonic() + (seconds or 0)
            for process in living:
                process.join(None if seconds is None else max(0.0, deadline - time.monotonic()))
        self._signals.forget(ended=True)


class _Forwarding:
    """Passes signals of the launcher on to its workers while it is entered; the second one ends them.

    A worker that is started after the signal is told at once; where none was started, the launcher leaves.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._when = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._untold: set[int] = set()
        self._any, self._ending = False, False

    @property
    def exit_code(self) -> int:
        return 0 if self.number is None else 128 + self.number

    def leaving(self) -> BaseException:
        """What ends this process after workers were ended by a signal."""
        assert self.number is not None
        if self.number == signal.SIGINT:
            return KeyboardInterrupt()
        print(f"stopped by {signal.Signals(self.number).name}", file=sys.stderr)
        return SystemExit(self.exit_code)

    def add(self, pid: int) -> None:
        """A worker lives."""
        self._any = True
        self._untold.add(pid)
        if self.number is not None:
            self._tell()

    def forget(self, ended: bool = False) -> None:
        """Workers are being ended, which no signal may cut short, or have ended."""
        self._any, self._ending = not ended, not ended
        self._untold.clear()

    def __enter__(self) -> _Forwarding:
        self._before = {kind: signal.getsignal(kind) for kind in KINDS}
        for kind in KINDS:
            signal.signal(kind, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._when = number, time.monotonic()
            if not self._any:
                raise _Stopped
            self._tell()
        elif time.monotonic() - self._when > SAME_SECONDS and not self._ending:
            raise _Stopped

    def _tell(self) -> None:
        for pid in list(self._untold):
            self._untold.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, FORWARDED)


def _show_cursor() -> None:
    """A progress bar that was cut off has left the cursor hidden."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()
