"""Workers on this machine, started with torch's elastic launcher, and started again when one has died.

The launcher is the only one who reports. It passes SIGTERM and Ctrl-C on in a form of its own, so that workers can finish
their step and leave by themselves; a second one ends them. Importing this module does not import torch.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from recpipe.errors import RecpipeError
from recpipe.train.failures import WorkerError, death, keep_traces, record, recorded, to_error
from recpipe.train.interrupt import FORWARDED, KINDS, SAME_SECONDS
from recpipe.train.logs import log_plainly
from recpipe.train.warm import METHOD, noted_start, warm_up

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# A rank that lost a peer waits this long before it goes, so that the rank that failed is seen first.
GRACE_SECONDS = 10.0
# After a failure the others get this long to go by themselves; one that is stopped never does.
_SHUTDOWN_SECONDS = 5
_FOLDER, _RUN_DIR = "RECPIPE_WORKER_FOLDER", "run_dir"


def local_defaults() -> dict[str, str]:
    """Variables of purely local runs: the user's own where set."""
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {key: os.environ.get(key, value) for key, value in defaults.items()}


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


def worker_folder() -> Path | None:
    """Where this launcher's workers leave word; None for workers of another launcher."""
    return Path(os.environ[_FOLDER]) if _FOLDER in os.environ else None


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
    start_early()
    base = Path(tempfile.mkdtemp(prefix="recpipe-workers-"))
    keep = False
    try:
        with _Forwarding() as signals:
            for attempt in range(max_restarts + 1):
                try:
                    return _attempt(function, nproc, args, base, attempt, signals)
                except WorkerError as error:
                    if attempt == max_restarts:
                        keep = not (base / _RUN_DIR).exists()
                        raise
                    logger.warning("%s\nstarting all workers again, %d of %d", error, attempt + 1, max_restarts)
        raise AssertionError("unreachable")
    finally:
        if not keep:
            shutil.rmtree(base, ignore_errors=True)


def _attempt(
    function: Callable[..., int], nproc: int, args: tuple[Any, ...], base: Path, attempt: int, signals: _Forwarding
) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    folder = base / str(attempt)
    folder.mkdir()
    # Workers are copies of a process that was started earlier: what it cannot know is handed on.
    variables = {**noted_start(), _FOLDER: str(folder)}
    try:
        with environment(local_defaults()), _elastic_quiet(), _reaper(folder):
            code = _elastic(function, nproc, (variables, *args), folder)
        return signals.exit_code or code
    except (SignalException, ChildFailedError) as error:
        _show_cursor()
        if signals.number is not None:
            raise signals.leaving() from None
        assert isinstance(error, ChildFailedError)
        raise _cause(error, folder, base) from None


def _cause(error: Any, folder: Path, base: Path) -> RecpipeError:
    """The first failure, with its trace where the run lies."""
    rank, failure = error.get_first_failure()
    noted = base / _RUN_DIR
    if noted.exists():
        folder = keep_traces(folder, Path(noted.read_text()) / "failures")
    said = recorded(folder)
    silent = rank not in {one.rank for one in said}
    if not said or (said[0].lost_peer and silent):
        return death(rank, failure.exitcode, _log_of(folder, rank))
    return to_error(said[0])


def _elastic(function: Callable[..., int], nproc: int, args: tuple[Any, ...], folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        # Restarts are ours: torch's do not tell why, or where to go on.
        max_restarts=0,
        start_method=METHOD,
        # Rank 0 keeps the terminal, for its progress bar.
        logs_specs=DefaultLogsSpecs(str(folder), redirects={rank: Std.ALL for rank in range(1, nproc)}),
        signals_to_handle="SIGQUIT",
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    results = elastic_launch(config, _worker_main)(function, *args)
    return max(int(code) for code in results.values())


def _worker_main(function: Callable[..., int], variables: Mapping[str, str], *args: Any) -> int:
    """A local worker's life. Only the launcher reports, so an error goes to a file."""
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    os.environ.update(variables)
    # The launcher passes these on; a terminal sends them to everybody.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prctl_pr_set_pdeathsig(FORWARDED)
    log_plainly()
    folder = worker_folder()
    assert folder is not None
    (folder / f"{os.environ['RANK']}.pid").write_text(str(os.getpid()))
    try:
        code = int(function(*args))
        launcher = multiprocessing.parent_process()
        if launcher is not None and not launcher.is_alive():
            # Nobody will take the result, and returning it would wait for that.
            os._exit(code)
        return code
    except Exception as error:
        failure = record(error, int(os.environ["RANK"]), folder)
        if failure.lost_peer:
            time.sleep(GRACE_SECONDS)
    sys.stdout.flush()
    # Not sys.exit: it waits for threads and process groups that may wait for the lost peer.
    os._exit(1)


@contextmanager
def _reaper(folder: Path) -> Iterator[None]:
    """Ends workers that do not go by themselves after one has said that it failed; the elastic launcher waits for 30 s."""
    over = threading.Event()

    def reap() -> None:
        while not over.wait(0.5):
            if any(not failure.lost_peer for failure in recorded(folder)):
                if not over.wait(_SHUTDOWN_SECONDS):
                    for path in folder.glob("*.pid"):
                        with suppress(ProcessLookupError):
                            os.kill(int(path.read_text()), signal.SIGKILL)
                return

    thread = threading.Thread(target=reap, name="recpipe-reaper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Forwarding:
    """Passes signals of the launcher on to its workers while it is entered; the second one ends them."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._when = 0.0
        self._before: dict[signal.Signals, Any] = {}

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

    def __enter__(self) -> _Forwarding:
        # The elastic launcher changes this one, too, and leaves it so.
        self._before = {kind: signal.getsignal(kind) for kind in (*KINDS, signal.SIGQUIT)}
        for kind in KINDS:
            signal.signal(kind, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        from torch.distributed.elastic.multiprocessing import SignalException

        if self.number is None:
            self.number, self._when = number, time.monotonic()
            for worker in multiprocessing.active_children():
                if worker.pid is not None:
                    os.kill(worker.pid, FORWARDED)
        elif time.monotonic() - self._when > SAME_SECONDS:
            raise SignalException("stopped for the second time", signal.SIGTERM)


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
