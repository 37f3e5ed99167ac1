"""Where the records of delimited text end: a newline inside quotes ends none, and a quote that is never closed hides none.

A quote opens a value only at the beginning of a field, and is closed by the next one that is not doubled. A value of
several lines counts only when the field ends behind its closing quote; else its first line is a broken record and reading
goes on with the line below.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NEWLINE, QUOTE, RETURN = 10, 34, 13


@dataclass(frozen=True)
class Records:
    """The records of a text.

    Args:
        ends: positions behind their newlines, int64, ascending.
        broken: positions where records begin whose quote is never closed.
    """

    ends: np.ndarray
    broken: frozenset[int] = frozenset()

    def last_end(self) -> int:
        """Where the last whole record ends; 0 where there is none."""
        return int(self.ends[-1]) if len(self.ends) else 0


def find_records(
    data: bytes, delimiter: bytes, whole: bool, is_row: Callable[[bytes], bool] = lambda line: False
) -> Records:
    """The records of a text that begins with a record.

    Args:
        data: the text.
        delimiter: one byte.
        whole: nothing comes behind the text; else an open value at its end may be closed there.
        is_row: whether a line is a row by itself: no line inside of a value may be one.
    """
    text = np.frombuffer(data, dtype=np.uint8)
    newlines, quotes = np.flatnonzero(text == NEWLINE), np.flatnonzero(text == QUOTE)
    if not len(quotes):
        return Records(newlines + 1)
    if _is_regular(text, quotes, delimiter[0]) and not (whole and len(quotes) % 2):
        inside = np.searchsorted(quotes, newlines) % 2 == 1
        if not (whole and _hides_rows(data, newlines, inside, is_row)):
            return Records(newlines[~inside] + 1)
    return _scan(data, delimiter, newlines, whole, is_row)


def _is_regular(text: np.ndarray, quotes: np.ndarray, delimiter: int) -> bool:
    """Whether every quote opens a field, closes one, or is doubled: then counting them tells what is inside."""
    opening, closing = quotes[0::2], quotes[1::2]
    before, after = text[opening - 1], text[np.minimum(closing + 1, len(text) - 1)]
    opens = (before == delimiter) | (before == NEWLINE)
    opens[0] |= opening[0] == 0
    opens[1:] |= opening[1:] - 1 == closing[: len(opening) - 1]
    closes = (after == delimiter) | (after == NEWLINE) | (after == RETURN) | (closing + 1 == len(text))
    closes[: len(opening) - 1] |= opening[1:] - 1 == closing[: len(opening) - 1]
    return bool(opens.all() and closes.all())


def _hides_rows(data: bytes, newlines: np.ndarray, inside: np.ndarray, is_row: Callable[[bytes], bool]) -> bool:
    """Whether a line between two newlines of one value is a row by itself."""
    pairs = np.flatnonzero(inside[1:] & inside[:-1])
    return any(is_row(data[newlines[n] + 1 : newlines[n + 1] + 1]) for n in pairs)


def _scan(
    data: bytes, delimiter: bytes, newlines: np.ndarray, whole: bool, is_row: Callable[[bytes], bool]
) -> Records:
    """The records of a text in which quotes mean different things."""
    field = re.escape(delimiter)
    value = re.compile(rb'(?:^|(?<=[' + field + rb'\n]))"[^"]*(?:""[^"]*)*(?:"(?!")|\Z)')
    behind = re.compile(rb"[" + field + rb"\n]|\r\n|\Z")
    outside, broken, at = np.ones(len(newlines), dtype=bool), set(), 0
    while match := value.search(data, at):
        first, last = np.searchsorted(newlines, [match.start(), match.end()])
        at = match.end()
        if at == len(data) and not whole:
            outside[first:] = False
            break
        closed = at - match.start() > 1 and data[at - 1] == QUOTE and _is_closed(match[0])
        if first == last and (closed or at < len(data)):
            continue
        lines = match[0].split(b"\n")[1:-1]
        if closed and behind.match(data, at) and not any(is_row(line + b"\n") for line in lines):
            outside[first:last] = False
            continue
        broken.add(data.rfind(b"\n", 0, match.start()) + 1)
        at = data.find(b"\n", match.start()) + 1 or len(data)
    return Records(newlines[outside] + 1, frozenset(broken))


def _is_closed(value: bytes) -> bool:
    """Whether the last quote of a value closes it: it is not one of a doubled pair."""
    body = value[1:]
    return (len(body) - len(body.rstrip(b'"'))) % 2 == 1
