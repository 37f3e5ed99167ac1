"""Local paths as `pathlib` has them, and remote ones (`s3://`, `gs://`, `memory://`, ...) through fsspec."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from upath import UPath

from recpipe.errors import ConfigError, DataError
from recpipe.untrusted import MAX_INTEGER

AnyPath: TypeAlias = Path | UPath
PIECE = 8 << 20


def is_remote(text: str) -> bool:
    """Whether this names a place that fsspec has to read."""
    return "://" in text


def to_path(text: str) -> AnyPath:
    """The path that a setting names.

    Raises:
        ConfigError: no such kind of place, or the package that reads it is not installed.
    """
    if not is_remote(text):
        return Path(text).expanduser()
    try:
        path = UPath(text)
        # The file system is made on first use; a missing package shows here.
        _ = path.fs
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{text} cannot be opened: {error}") from error
    return path


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """A full disk, a missing right or the like becomes one message.

    Raises:
        DataError: the file that could not be written, or `place`, and why.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {error.filename or place}: {error.strerror or error}") from error


def version_of(path: AnyPath) -> str:
    """Changes when the file does: its time of change in nanoseconds, or what the remote place tells of it."""
    return str(path.stat().st_mtime_ns) if isinstance(path, Path) else str(path.fs.ukey(path.path))


def copy_file(source: AnyPath, target: Path, sha256: str, size: int = MAX_INTEGER) -> None:
    """Copy a file unless the copy is there; processes that want the same one wait for the first.

    Args:
        source: the remote file.
        target: the local one; appears under its name when it is whole.
        sha256: what the bytes must have.
        size: their number; no more than one beyond it is read.

    Raises:
        DataError: the file cannot be read or written, or has another checksum.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(target.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _copy(source, target, sha256, size)
    except OSError as error:
        raise DataError(f"{source} cannot be copied to {target}: {error.strerror or error}") from error


def _copy(source: AnyPath, target: Path, sha256: str, size: int) -> None:
    """Copy a piece at a time and check the sum."""
    partial, digest, left = target.with_name(target.name + ".partial"), hashlib.sha256(), size + 1
    with source.open("rb") as reading, partial.open("wb") as writing:
        while left > 0 and (piece := reading.read(min(PIECE, left))):
            left -= len(piece)
            digest.update(piece)
            writing.write(piece)
    if digest.hexdigest() != sha256:
        raise DataError(f"{source} has another checksum than its manifest says; prepare or upload it again")
    os.replace(partial, target)
