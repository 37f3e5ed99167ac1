"""Which files are read, in which role: the files named, or those of a directory, sorted by their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from recpipe.data.paths import AnyPath, to_path, version_of
from recpipe.errors import ConfigError, DataError

COMPRESSIONS = ("", ".gz", ".zst")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Source:
    """One input file.

    Args:
        path: where it is.
        role: main (train, and what is held out of it), valid or test.
        size: bytes on disk.
        version: changes when the file does.
    """

    path: AnyPath
    role: str
    size: int
    version: str


def find_sources(path: str, valid_path: str, test_path: str, endings: tuple[str, ...], setting: str) -> list[Source]:
    """All input files: main ones first, then valid, then test.

    Args:
        path: a file or a directory.
        valid_path, test_path: the same for held-out rows; may be empty.
        endings: endings of the names of data files, before that of the compression.
        setting: the user's `data=...`, for messages.

    Raises:
        ConfigError: no path was given, or it is a prepared directory.
        DataError: a path does not exist or has no data.
    """
    if not path:
        raise ConfigError(f"{setting} reads files: give data.path=FILE-or-DIR")
    found: list[Source] = []
    for role, given in (("main", path), ("valid", valid_path), ("test", test_path)):
        if given:
            found += _given(given, role, endings)
    _check_distinct(found)
    return found


def _given(text: str, role: str, endings: tuple[str, ...]) -> list[Source]:
    """The files that a setting names."""
    try:
        return [_source(file, role) for file in _files(to_path(text), endings)]
    except OSError as error:
        raise DataError(f"{text} cannot be read: {error.strerror or error}") from error


def _files(path: AnyPath, endings: tuple[str, ...]) -> list[AnyPath]:
    """The file, or the data files of the directory."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path} does not exist; check data.path (a path with '=' or spaces needs quotes)")
    if (path / MANIFEST).is_file():
        raise ConfigError(f"{path} is a prepared directory; use data=prepared data.path={path}")
    files = [file for file in path.iterdir() if file.is_file() and _is_data(file, endings)]
    train = [file for file in files if _stem(file) in ("train", "training")]
    days = [file for file in files if re.fullmatch(r"day_\d+", _stem(file))]
    chosen = train[:1] or days or files
    if not chosen:
        known = ", ".join(ending or "nothing" for ending in endings)
        raise DataError(f"{path} has no data files (names end in {known}, then .gz, .zst or nothing)")
    return sorted(chosen, key=_by_number)


def _is_data(file: AnyPath, endings: tuple[str, ...]) -> bool:
    """Judged by the name."""
    name = file.name
    for compression in COMPRESSIONS[1:]:
        name = name.removesuffix(compression)
    return Path(name).suffix in endings and not name.startswith(".")


def _stem(file: AnyPath) -> str:
    """The name up to its first dot."""
    return file.name.split(".")[0]


def _by_number(file: AnyPath) -> tuple[list[int | str], str]:
    """Sort day_2 before day_10."""
    parts = re.split(r"(\d+)", file.name)
    return [int(part) if part.isdigit() else part for part in parts], file.name


def _source(path: AnyPath, role: str) -> Source:
    """The file as it lies there now."""
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path} is empty")
    return Source(path, role, size, version_of(path))


def _check_distinct(sources: list[Source]) -> None:
    """No file in two roles: held-out rows must not be trained on."""
    seen: dict[str, str] = {}
    for source in sources:
        known = str(source.path.resolve())
        if known in seen:
            raise ConfigError(f"{source.path} is given as {seen[known]} and as {source.role}; hold rows out")
        seen[known] = source.role
