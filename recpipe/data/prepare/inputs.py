"""Which files are read, in which role: those that a setting names, or those of a folder, in the order of their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recpipe.data.paths import AnyPath, version_of
from recpipe.data.prepare.listing import MANIFEST, Found, Listing, is_pattern, without_compression
from recpipe.data.prepare.roles import MAIN, SETTINGS, TEST, VALID, partition_keys, role_said, roles_in
from recpipe.errors import ConfigError, DataError
from recpipe.escapes import shown

__all__ = ["MANIFEST", "Source", "find_sources", "given_places"]

Say = Callable[[str], None]
_NAMED = 20


@dataclass(frozen=True)
class Source:
    """One input file.

    Args:
        path: where it is.
        role: main (train, and what is held out of it), valid or test.
        size: bytes on disk.
        version: changes when the file does.
        by_name: its name says the role; no setting does.
        keys: columns that the names of its folders hold (`dt=2024-01-01`), with their value; None where it is missing.
    """

    path: AnyPath
    role: str
    size: int
    version: str
    by_name: bool = False
    keys: tuple[tuple[str, str | None], ...] = ()


@dataclass
class _Place:
    """One place that a setting names, with the files that are read from it, by role."""

    listing: Listing
    chosen: dict[str, list[Found]]


def given_places(value: Any, setting: str) -> list[str]:
    """The files, folders and patterns that a setting names: one text, or a list of them.

    Raises:
        ConfigError: it is something else.
    """
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return [str(value)] if value not in (None, "") else []
    if hasattr(value, "items") or not hasattr(value, "__iter__"):
        raise ConfigError(
            f"{setting}={value} is no path; give a file, a folder, a pattern such as 'day_*.csv', or a list"
        )
    places = [place for entry in value for place in given_places(entry, setting)]
    if not places:
        raise ConfigError(f"{setting}=[] names no file")
    return places


def find_sources(
    path: Any,
    valid_path: Any,
    test_path: Any,
    endings: tuple[str, ...],
    setting: str,
    say: Say = lambda line: None,
    by_name: bool = True,
) -> list[Source]:
    """All input files: main ones first, then valid, then test.

    Args:
        path: a file, a folder, a pattern, or a list of these.
        valid_path, test_path: the same for held-out rows; may be empty.
        endings: endings of the names of data files, before that of the compression.
        setting: the user's `data=...`, for messages.
        say: told which files are left out, and which are held out by their names; one line a place.
        by_name: names such as `test.csv` say what the rows of a folder are; else all of them are read alike.

    Raises:
        ConfigError: no path was given, or it is a prepared directory, or a name says two roles.
        DataError: a path does not exist or has no data.
    """
    given = {MAIN: path, VALID: valid_path, TEST: test_path}
    places = {role: given_places(value, SETTINGS[role]) for role, value in given.items()}
    if not places[MAIN]:
        raise ConfigError(f"{setting} reads files: give data.path=FILE-or-DIR")
    taken = {role for role, value in places.items() if value}
    found: list[Source] = []
    for role, texts in places.items():
        for text in texts:
            found += _given(text, role, taken, endings, say, by_name)
    _check_distinct(found)
    return sorted(_with_rows(found, say), key=lambda source: [MAIN, VALID, TEST].index(source.role))


def _given(text: str, role: str, taken: set[str], endings: tuple[str, ...], say: Say, by_name: bool) -> list[Source]:
    """The files of one place."""
    try:
        place = _choose(Listing(text, endings).read(), role, taken, by_name)
        sources = [_source(file, one, one != role) for one, files in place.chosen.items() for file in files]
    except (OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, ConfigError | DataError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{shown(text)} cannot be read: {reason}") from error
    for line in _remarks(place, role):
        say(line)
    return sources


def _choose(listing: Listing, role: str, taken: set[str], by_name: bool) -> _Place:
    """Which files of a place are read, in which role."""
    said = {file: _said(file, listing.place) if by_name else None for file in listing.files}
    chosen: dict[str, list[Found]] = {role: [file for file in listing.files if said[file] == role]}
    if is_pattern(listing.place) and role == MAIN:
        # Whoever writes a pattern wants all that it matches.
        chosen[role] = [file for file in listing.files if said[file] in (None, role)]
    elif not chosen[role]:
        chosen[role] = _days([file for file in listing.files if said[file] is None])
    if role == MAIN:
        for other in (VALID, TEST):
            chosen[other] = [file for file in listing.files if said[file] == other and other not in taken]
    read = {file for files in chosen.values() if chosen[role] for file in files}
    listing.left += [(file.name, _unused(said[file], role)) for file in listing.files if file not in read]
    if not chosen[role]:
        raise DataError(_nothing(listing, role))
    for files in chosen.values():
        _check_alike(listing.place, files)
    return _Place(listing, chosen)


def _said(file: Found, place: str) -> str | None:
    """The role that the name says; none where a setting spells the word itself."""
    role = role_said(file.below)
    return None if is_pattern(place) and role in roles_in(place.rpartition("/")[2]) else role


def _days(files: list[Found]) -> list[Found]:
    """The days of a log where there are some, else all files."""
    return [file for file in files if re.match(r"day_\d+(\.|$)", file.below[-1] if file.below else "")] or files


def _unused(said: str | None, role: str) -> str:
    """Why a data file is not read."""
    if said is None:
        return f"not named as {'training' if role == MAIN else role} rows, as others are"
    return f"its name says {said} rows"


def _nothing(listing: Listing, role: str) -> str:
    """What to tell when a place has no data."""
    known = ", ".join(ending or "nothing" for ending in listing.endings)
    left = f"; left out: {_names(listing.left)}" if listing.left else ""
    advice = f"; to read them give {SETTINGS[role]}=FILE or a pattern such as '{listing.place}/*/*'" if left else ""
    wanted = f"no data files for {SETTINGS[role]} (names end in {known}, then .gz, .zst or nothing)"
    return f"{listing.place} has {wanted}{left}{advice}"


def _names(left: list[tuple[str, str]]) -> str:
    """Names with their reasons, grouped by these."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left:
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{_some(names)} ({reason})" for reason, names in by_reason.items())


def _some(names: list[str]) -> str:
    """Names as people read them, not more than a line takes."""
    more = f" and {len(names) - _NAMED:,} others" if len(names) > _NAMED else ""
    return ", ".join(shown(name) for name in names[:_NAMED]) + more


def _check_alike(place: str, files: list[Found]) -> None:
    """Raises DataError where files seem to be the same rows twice, or differ in format."""
    stems = [(file.path.parent, _stem(file)) for file in files]
    twice = {stem for stem, count in Counter(stems).items() if count > 1}
    twins = [file.name for file, stem in zip(files, stems, strict=True) if stem in twice]
    if twins:
        raise DataError(
            f"{place}: {_some(twins)} seem to be the same rows twice; remove one, or name the files: data.path=[...]"
        )
    kinds = sorted({file.ending for file in files})
    if len(kinds) > 1:
        counts = Counter(file.ending or "no ending" for file in files)
        listed = ", ".join(f"{count} with {kind}" for kind, count in sorted(counts.items()))
        pattern = place if is_pattern(place) else f"{place}/*"
        raise DataError(f"{place} has files of several formats ({listed}); choose with a pattern: '{pattern}{kinds[-1]}'")


def _stem(file: Found) -> str:
    """The name without endings."""
    plain = without_compression(file.path.name)
    return plain.rpartition(".")[0] if file.ending else plain


def _remarks(place: _Place, role: str) -> list[str]:
    """What to say of a place."""
    held_out = [
        f"{SETTINGS[one].split('.')[1].removesuffix('_path')} rows are {_some([file.name for file in files])}"
        for one, files in place.chosen.items()
        if files and one != role
    ]
    where = shown(place.listing.place)
    lines = [
        f"{where}: by their names {'; '.join(held_out)}; training rows are the other {len(place.chosen[role])} file(s)"
    ]
    left = [f"{where}: left out are {_names(place.listing.left)}"]
    return lines * bool(held_out) + left * bool(place.listing.left)


def _source(file: Found, role: str, by_name: bool) -> Source:
    """The file as it lies there now."""
    size = file.path.stat().st_size
    return Source(file.path, role, size, version_of(file.path), by_name, tuple(partition_keys(file.path).items()))


def _with_rows(sources: list[Source], say: Say) -> list[Source]:
    """Without empty files, which are nothing beside others."""
    empty = [source for source in sources if not source.size]
    for source in empty:
        if not any(other.size for other in sources if other.role == source.role):
            raise DataError(f"{source.path} is empty")
    if empty:
        say(f"left out are {_some([str(source.path) for source in empty])} (empty)")
    return [source for source in sources if source.size]


def _check_distinct(sources: list[Source]) -> None:
    """No file twice: held-out rows must not be trained on, and none is trained on twice as often as others."""
    seen: dict[str, str] = {}
    for source in sources:
        known = str(source.path.resolve())
        if seen.get(known) == source.role:
            raise ConfigError(f"{source.path} is given twice as {source.role}; name it once")
        if known in seen:
            raise ConfigError(f"{source.path} is given as {seen[known]} and as {source.role}; hold rows out")
        seen[known] = source.role
