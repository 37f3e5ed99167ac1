"""Failures of workers: how a rank leaves word of its error, and which rank's error a user gets to see.

When a rank fails, its peers fail too, with closed connections. The cause is the first failure that is not such a one.
Standard library only.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from recpipe import errors
from recpipe.errors import ConfigError, RecpipeError

_LOST_PEER = (
    "closed by peer",
    "connection reset",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "failed to recv",
    "gloo",
    "tcpstore",
    "unhandled system error",
)


class AlreadyReported(RecpipeError):
    """Ends a process whose error another one has shown already."""


class WorkerError(RecpipeError):
    """A worker died or failed in a way that nobody foresaw."""


@dataclass(frozen=True)
class Failure:
    """The word that a failing rank leaves.

    Args:
        kind: name of the exception's class.
        expected: it is a RecpipeError, whose message is all a user needs.
        lost_peer: it looks like the consequence of another rank's end.
        trace: file with the whole trace.
    """

    rank: int
    when: float
    kind: str
    message: str
    expected: bool
    lost_peer: bool
    trace: str


def record(error: Exception, rank: int, folder: Path) -> Failure:
    """Writes `error` of `rank` to `folder`."""
    trace = folder / f"rank{rank}.txt"
    trace.write_text("".join(traceback.format_exception(error)))
    expected = isinstance(error, RecpipeError)
    message = str(error) if expected else describe(error)
    failure = Failure(rank, time.time(), type(error).__name__, message, expected, is_lost_peer(error), str(trace))
    partial = folder / f"rank{rank}.partial"
    partial.write_text(json.dumps(asdict(failure)))
    partial.rename(folder / f"rank{rank}.json")
    return failure


def keep_traces(folder: Path, target: Path) -> Path:
    """Copies what workers left under `folder` below `target`, beside what earlier failures left; gives where it lies."""
    target.mkdir(parents=True, exist_ok=True)
    kept = target / f"attempt-{sum(path.is_dir() for path in target.iterdir())}"
    shutil.copytree(folder, kept)
    for path in kept.glob("rank*.json"):
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({**saved, "trace": str(kept / Path(saved["trace"]).name)}))
    return kept


@contextmanager
def traces_in(folder: Path, rank: int) -> Iterator[None]:
    """Leaves the trace of an unexpected error in a run directory; the error knows where (`trace_file`).

    For workers whose launcher does not collect traces by itself.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, RecpipeError):
            (folder / "failures").mkdir(exist_ok=True)
            trace = folder / "failures" / f"rank{rank}.txt"
            trace.write_text("".join(traceback.format_exception(error)))
            error.trace_file = str(trace)  # type: ignore[attr-defined]
        raise


def recorded(folder: Path) -> list[Failure]:
    """What ranks left in `folder`, the causes first, then by time."""
    found = [Failure(**json.loads(path.read_text())) for path in folder.glob("rank*.json")]
    return sorted(found, key=lambda failure: (failure.lost_peer, failure.when))


def is_lost_peer(error: BaseException) -> bool:
    """Whether `error` looks like the consequence of another rank's end."""
    text = str(error).lower()
    return not isinstance(error, RecpipeError) and any(mark in text for mark in _LOST_PEER)


def describe(error: BaseException) -> str:
    """Kind, message, notes and place of an unexpected error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return f"unexpected {type(error).__name__}: {str(error).strip()}{notes}{place}"


def to_error(failure: Failure) -> RecpipeError:
    """The exception to raise in the launcher: of the same class if it is one of ours."""
    if failure.kind == WorkerError.__name__:
        return WorkerError(failure.message)
    if not failure.expected:
        return WorkerError(f"rank {failure.rank}: {failure.message}\nThe full trace is in {failure.trace}")
    kind = getattr(errors, failure.kind, RecpipeError)
    assert issubclass(kind, RecpipeError)
    # Settings are the same on every rank: which one spoke first says nothing.
    silent = issubclass(kind, ConfigError) or "rank" in failure.message
    return kind(failure.message if silent else f"rank {failure.rank}: {failure.message}")


def death(rank: int, exit_code: int, log: Path | None) -> WorkerError:
    """The error for a rank that ended without a word.

    Args:
        exit_code: negative for a signal.
        log: file with what it printed last, if there is one.
    """
    if exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
        if -exit_code == signal.SIGKILL:
            how += "; the system does this when memory runs out (try a smaller batch_size or fewer launch.nproc)"
    else:
        how = f"ended with exit code {exit_code} before its work was done"
    return WorkerError(f"rank {rank} {how}" + (f"\nWhat it printed is in {log}" if log is not None else ""))
