"""The run directory: chosen and made by rank 0 alone, known to all."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from recpipe.comm import Groups
from recpipe.errors import ConfigError, DataError
from recpipe.train.check import require_free
from recpipe.train.overwriting import clear, mark, require_continuable
from recpipe.untrusted import Source

logger = logging.getLogger(__name__)
PATIENCE_SECONDS = 10


def make_run_dir(cfg: Any, command: str, groups: Groups, step: int | None = None) -> Path:
    """Makes the run directory; collective.

    Args:
        cfg: with `run`, `model`, `data`.
        command: first part of the default's name.
        step: the directory asked for holds a run that goes on from this step; None: a new run.

    Raises:
        ConfigError: the directory asked for holds files already.
    """
    name = _create(cfg, command, step) if groups.rank == 0 else ""
    return Path(groups.broadcast_text(name))


def _create(cfg: Any, command: str, step: int | None) -> str:
    if cfg.run.dir:
        folder = Path(cfg.run.dir)
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder, 0):
            pass
        if step is not None:
            require_continuable(folder, step)
            mark(folder)
            _continue(folder, step)
            return str(folder)
        require_free(folder, cfg.run.overwrite)
        clear(folder)
        mark(folder)
        return str(folder)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / command / f"{stamp}-{cfg.model.name}-{cfg.data.name}"
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        mark(folder)
        return str(folder)
    raise ConfigError(f"{base}: a thousand runs in one second; set run.dir")


@contextmanager
def hold(folder: Path, rank: int) -> Iterator[None]:
    """Keeps others from training in a run directory meanwhile; rank 0 does it, by a lock that ends with the process.

    Raises:
        ConfigError: another run is under way there, and does not end soon.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        if rank == 0 and not _lock(handle, PATIENCE_SECONDS):
            raise ConfigError(
                f"run.dir={folder}: another run is under way there; wait until it ends, or choose another directory"
            )
        yield
    finally:
        os.close(handle)


def _lock(handle: int, seconds: float) -> bool:
    """Tries for some time: a run that was told to end may still be ending. False where the lock is another's."""
    for left in range(int(seconds * 10), -1, -1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1 if left else 0)
        except OSError as error:
            logger.info("the run directory cannot be locked (%s): train one run at a time in it", error.strerror)
            return True
        else:
            return True
    return False


def _continue(folder: Path, step: int) -> None:
    """Takes back what a run wrote after the step that it goes on from, and what it left unfinished."""
    log = folder / "metrics.jsonl"
    if log.exists():
        kept = [line for line in log.read_text().splitlines(keepends=True) if _step_of(line) <= step]
        log.with_suffix(".new").write_text("".join(kept))
        log.with_suffix(".new").replace(log)
    (folder / "summary.json").unlink(missing_ok=True)
    for unfinished in (folder / "checkpoints").glob(".*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for path in (folder / "checkpoints").glob("step-*"):
        # Damaged, or this run would go on from it: it must not count as one of the latest.
        number = path.name.partition("-")[2]
        if number.isdecimal() and int(number) > step:
            path.rename(path.with_name(f".{path.name}.damaged"))


def drop_line(folder: Path, step: int, split: str) -> None:
    """Takes back the metrics of a split at a step; they are about to be written again."""
    log = folder / "metrics.jsonl"
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) != step or _split_of(line) != split]
        if len(kept) < len(lines):
            log.with_suffix(".new").write_text("".join(kept))
            log.with_suffix(".new").replace(log)


def _step_of(line: str) -> float:
    """The step of a line; a line cut off by a kill belongs to no step."""
    try:
        return Source("metrics.jsonl", non_finite=True).parsed(line)["step"].integer()
    except DataError:
        return math.inf


def _split_of(line: str) -> str:
    """The split of a line; one without a split has none."""
    try:
        return Source("metrics.jsonl", non_finite=True).parsed(line)["split"].text()
    except DataError:
        return ""
