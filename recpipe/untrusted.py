"""One door for files that somebody else may have written: sizes, JSON, types, numbers, names, and text for a terminal.

Every error names the file, the place inside it and the fault: "PATH: is damaged: files.x.size is a text, not an integer".
Standard library only, so that every part of the package can read through it.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Protocol

from recpipe.errors import DataError, RecpipeError
from recpipe.escapes import is_control, shown

SMALL = 16 << 20
"""Bytes that a small text may have."""
LARGE = 128 << 20
"""Bytes that a list of every piece of a checkpoint, or of every shard of prepared rows, may have."""
MAX_DEPTH = 32
MAX_INTEGER = 2**63 - 1
MAX_NUMBER = 1e300
_BYTES_A_VALUE = 8
_MAX_NAME, _MAX_PART = 1024, 255
_SHOWN_PATH = 2000
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = str.maketrans({"{": "[", "}": "]"})
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "an integer", float: "a number"}


class _Opened(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Source:
    """A stranger's file, as messages name it.

    Args:
        path: the file.
        error: the kind of error that its faults are.
        cure: what the user can do, a clause for the end of a message.
        large: its text may have `LARGE` bytes instead of `SMALL`.
        non_finite: NaN and infinities are values like others (files of measurements).
    """

    path: Any
    error: type[RecpipeError] = DataError
    cure: str = ""
    large: bool = False
    non_finite: bool = False

    @property
    def limit(self) -> int:
        """Bytes that its text may have."""
        return LARGE if self.large else SMALL

    def damaged(self, reason: str) -> RecpipeError:
        """The error for a fault of the content."""
        return self.error(f"{shown(self.path, _SHOWN_PATH)}: is damaged: {reason}{self._cure}")

    def unreadable(self, reason: object) -> RecpipeError:
        """The error for a file that cannot be opened or read."""
        said = (reason.strerror or reason) if isinstance(reason, OSError) else reason
        return self.error(f"{shown(self.path, _SHOWN_PATH)}: cannot be read: {said}{self._cure}")

    @property
    def _cure(self) -> str:
        return f"; {self.cure}" if self.cure else ""

    def data(self) -> bytes:
        """All bytes of a small regular file.

        Raises:
            RecpipeError: of the kind `error`; the file is missing, no regular file, or larger than `limit`.
        """
        try:
            with open_regular(self.path) as file:
                return self._bounded(file)
        except OSError as error:
            raise self.unreadable(error) from None

    def _bounded(self, file: _Opened) -> bytes:
        data = file.read(self.limit + 1)
        if len(data) > self.limit:
            raise self.damaged(f"it has more than {self.limit:,} bytes, the most that such a file may have")
        return data

    def text(self) -> str:
        """The text of a small file; errors as `data` has them, and for what is not UTF-8."""
        return self.decoded(self.data())

    def decoded(self, data: bytes) -> str:
        """UTF-8 bytes as text."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"byte {error.start:,} is no UTF-8 text") from None

    def json(self) -> Value:
        """The content of a small JSON file."""
        return self.parsed(self.text())

    def parsed(self, text: str) -> Value:
        """The content of a JSON text: no duplicate keys, no deep nesting, no NaN unless the file may have it."""
        self._measure(text)
        try:
            content = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_constant=float if self.non_finite else self._constant,
                parse_float=self._float,
            )
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"it is no JSON text ({_first_line(error)})") from None
        return Value(content, self)

    def _measure(self, text: str) -> None:
        """Refuses what would take much more memory than its bytes, before it is parsed."""
        if len(text) > self.limit:
            raise self.damaged(f"it has more than {self.limit:,} characters, the most that such a text may have")
        bare = _STRINGS.sub("", text).translate(_BRACKETS)
        values = bare.count("[") + bare.count(",")
        if values > self.limit // _BYTES_A_VALUE:
            raise self.damaged(f"it has {values:,} values; {self.limit // _BYTES_A_VALUE:,} are the most")
        brackets = "".join(re.findall(r"[\[\]]+", bare))
        for _ in range(MAX_DEPTH):
            # Each pass takes away the innermost level; of brackets that do not match, the parser tells.
            brackets = brackets.replace("[]", "")
        if "[]" in brackets:
            raise self.damaged(f"it is nested deeper than {MAX_DEPTH} levels")

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise self.damaged(f"{shown(twice)} is there twice")
        return found

    def _constant(self, text: str) -> float:
        raise self.damaged(f"it has the number {text}")

    def _float(self, text: str) -> float:
        number = float(text)
        if not abs(number) < math.inf and not self.non_finite:
            raise self.damaged(f"the number {shown(text, 40)} is too large")
        return number


@dataclass(frozen=True)
class Value:
    """A value of a stranger's file, and its place there.

    Every method raises an error of the source's kind where the value is not what is asked for.

    Args:
        raw: what the parser gave.
        source: the file.
        place: keys and indexes on the way to it, such as ``files.x.size``; empty for the whole content.
    """

    raw: Any
    source: Source
    place: str = ""

    def wrong(self, reason: str) -> RecpipeError:
        """The error for this value: "PATH: is damaged: PLACE REASON"."""
        return self.source.damaged(f"{shown(self.place) if self.place else 'the content'} {reason}")

    def _is(self, kind: type, wanted: str) -> Any:
        if type(self.raw) is not kind:
            raise self.wrong(f"is {kind_of(self.raw)}, not {wanted}")
        return self.raw

    def fields(self, needed: Iterable[str] = (), optional: Iterable[str] | None = None) -> dict[str, Value]:
        """The fields of an object.

        Args:
            needed: names that must be there.
            optional: all other names that may be there; None: any.
        """
        found: dict[str, Any] = self._is(dict, "an object")
        needed = tuple(needed)
        missing = [name for name in needed if name not in found]
        if missing:
            raise self.wrong(f"has no {missing[0]}")
        if optional is not None:
            strange = sorted(set(found) - set(needed) - set(optional))
            if strange:
                raise self.wrong(f"has the unknown key {shown(strange[0])} (a newer version may have written it)")
        return {name: Value(raw, self.source, self._below(name)) for name, raw in found.items()}

    def __getitem__(self, name: str) -> Value:
        """A field that must be there."""
        found = self._is(dict, "an object")
        if name not in found:
            raise self.wrong(f"has no {name}")
        return Value(found[name], self.source, self._below(name))

    def get(self, name: str) -> Value | None:
        """A field that may be missing."""
        return self[name] if name in self._is(dict, "an object") else None

    def items(self, length: int | None = None, most: int | None = None) -> list[Value]:
        """The elements of a list.

        Args:
            length: their number.
            most: the largest number of them.
        """
        found = self._is(list, "a list")
        if length is not None and len(found) != length:
            raise self.wrong(f"has {len(found):,} elements, not {length:,}")
        if most is not None and len(found) > most:
            raise self.wrong(f"has {len(found):,} elements; {most:,} are the most")
        return [Value(raw, self.source, f"{self.place}[{index}]") for index, raw in enumerate(found)]

    def text(self, choices: Collection[str] | None = None, most: int = 1 << 16) -> str:
        """A text.

        Args:
            choices: the only ones that may be there.
            most: characters that it may have.
        """
        found: str = self._is(str, "a text")
        if len(found) > most:
            raise self.wrong(f"has {len(found):,} characters; {most:,} are the most")
        if choices is not None and found not in choices:
            raise self.wrong(f"is {shown(found)}; known: {', '.join(map(str, choices))}")
        return found

    def integer(self, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer in [low, high]."""
        found: int = self._is(int, "an integer")
        if not low <= found <= high:
            raise self.wrong(f"is {shown_number(found)}, not in {low:,} to {high:,}")
        return found

    def number(self, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> float:
        """A number in [low, high]; never NaN. Infinite only where a bound is."""
        if type(self.raw) not in (int, float):
            raise self.wrong(f"is {kind_of(self.raw)}, not a number")
        # An integer may be larger than any float; NaN fails every comparison.
        if not low <= self.raw <= high:
            raise self.wrong(f"is {shown_number(self.raw)}, not in {low:g} to {high:g}")
        return float(self.raw)

    def is_number_or_null(self) -> bool:
        """True, for any number, NaN and infinities too where the file may have them, and for null."""
        if self.raw is not None and type(self.raw) not in (int, float):
            raise self.wrong(f"is {kind_of(self.raw)}, not a number")
        if type(self.raw) is int and abs(self.raw) > MAX_INTEGER:
            raise self.wrong(f"is {shown_number(self.raw)}, too large a number")
        return True

    def flag(self) -> bool:
        """True or false."""
        found: bool = self._is(bool, "true or false")
        return found

    def name(self) -> str:
        """A name of a file below the directory of this one: parts without tricks, joined by slashes."""
        found = self.text(most=_MAX_NAME)
        problem = name_problem(found)
        if problem:
            raise self.wrong(f"is {shown(found)}, which is no name of a file there: {problem}")
        return found

    def _below(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def kind_of(raw: Any) -> str:
    """A JSON value's kind, in words."""
    return "null" if raw is None else _KINDS.get(type(raw), type(raw).__name__)


def shown_number(number: float) -> str:
    """A number for a message; a huge integer by its size."""
    if isinstance(number, int) and abs(number) > 10**30:
        return f"an integer of {number.bit_length():,} bits"
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def name_problem(name: str) -> str:
    """Why `name` is no relative path that stays below its directory; empty where it is one."""
    if not name:
        return "it is empty"
    if any(is_control(letter) for letter in name):
        return "it has a control character"
    if "\\" in name:
        return "it has a backslash"
    if name.startswith(("/", "~")) or (len(name) > 1 and name[1] == ":"):
        return "it is absolute"
    if len(name) > _MAX_NAME or any(len(os.fsencode(part)) > _MAX_PART for part in _encodable(name)):
        return "it is too long"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "it has an empty part, . or .."
    return ""


def _encodable(name: str) -> list[str]:
    """The parts of a name; a lone surrogate, which no file system has, counts as too long."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return ["x" * (_MAX_PART + 1)]
    return name.split("/")


def member(folder: Path, name: str, source: Source) -> Path:
    """The regular file that `source` lists as `name` below `folder`.

    Raises:
        RecpipeError: of the source's kind; the name leaves the folder, by its text or by a link, or is no regular file.
    """
    problem = name_problem(name)
    if problem:
        raise source.damaged(f"it lists the file {shown(name)}: {problem}")
    path = folder / name
    missing = replace(source, path=path)
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise source.damaged(f"the file {shown(name)} is a link that leaves the directory")
        if not path.is_file():
            raise missing.unreadable("it is no regular file")
    except FileNotFoundError:
        raise source.error(f"{shown(path, _SHOWN_PATH)}: is missing") from None
    except (OSError, RuntimeError) as error:
        raise missing.unreadable(error) from None
    return path


def open_regular(path: Any) -> Any:
    """Opens a file for reading bytes; a pipe or a device, which could block or never end, is an OSError.

    Args:
        path: a `Path`, or a remote one that has `open`.
    """
    if not isinstance(path, PurePath | str):
        return path.open("rb")
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(0, "it is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_pieces(path: Path, size: int, piece: int = 8 << 20) -> Iterator[bytes]:
    """The bytes of a file, `piece` at a time, and no more than one beyond `size`."""
    left = size + 1
    with open_regular(path) as file:
        while left > 0 and (part := file.read(min(piece, left))):
            left -= len(part)
            yield part


def typed(record: Mapping[str, Value], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a flat object by the method of `Value` that reads each: ``{"step": "integer"}``.

    Args:
        record: what `Value.fields` gave.
        kinds: name -> integer, number, text, flag or name; those that are not there are left out.
    """
    return {name: getattr(record[name], kind)() for name, kind in kinds.items() if name in record}


def _first_line(error: BaseException) -> str:
    return shown(next(iter(str(error).splitlines()), "") or type(error).__name__)
