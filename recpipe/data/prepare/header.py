"""The first line of delimited text: its column names, and how its fields are parted."""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass

from recpipe.data.paths import AnyPath
from recpipe.data.prepare.listing import ending_of
from recpipe.data.prepare.records import find_records
from recpipe.data.prepare.streams import head
from recpipe.errors import ConfigError, DataError
from recpipe.escapes import shown

_WORDS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " ", "colon": ":"}
_BY_ENDING = {".tsv": "\t", ".psv": "|"}
_USUAL = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "pipe"}
_LARGEST = 1 << 24


@dataclass(frozen=True)
class Header:
    """What stands before the rows.

    Args:
        names: of the columns, in order.
        size: bytes, those of blank lines before it included.
        lines: the same in lines.
    """

    names: list[str]
    size: int
    lines: int


def delimiter_of(setting: str, path: AnyPath) -> str:
    """The sign between fields: the one that is set, else by the ending of the name.

    Raises:
        ConfigError: it is no single sign.
    """
    if not setting:
        return _BY_ENDING.get(ending_of(path.name), ",")
    sign = _WORDS.get(setting.lower(), setting)
    if re.fullmatch(r"\\(t|x[0-9a-fA-F]{2}|u00[0-9a-fA-F]{2})", sign):
        sign = codecs.decode(sign, "unicode_escape")
    if len(sign) != 1 or not sign.isascii():
        raise ConfigError(
            f"data.delimiter={shown(setting)} must be one character of ASCII, or one of {', '.join(_WORDS)}, \\t, \\x01; "
            f"write text with other delimiters anew with one of these"
        )
    if sign in '"\r\n':
        raise ConfigError(f"data.delimiter={shown(setting)} must be one character that ends no line and is no quote")
    return sign


def read_header(path: AnyPath, sample: bytes, delimiter: str) -> Header:
    """The names in the first record, through the rules by which rows are read.

    Args:
        sample: the beginning of the text; more is read where it does not hold the whole record.

    Raises:
        DataError: a quote of it is never closed.
    """
    blank = len(sample) - len(sample.lstrip(b"\r\n"))
    found = find_records(sample[blank:], delimiter.encode(), False)
    if not found.last_end():
        sample = head(path, _LARGEST)
        blank = len(sample) - len(sample.lstrip(b"\r\n"))
        text = sample if sample.endswith(b"\n") else sample + b"\n"
        found = find_records(text[blank:], delimiter.encode(), True)
        if found.broken or not found.last_end():
            raise DataError(f"{path}: a quote in the header is never closed")
    end = min(blank + int(found.ends[0]), len(sample))
    line = sample[blank:end].decode("utf-8", "replace")
    return Header(_fields(line, delimiter), end, sample.count(b"\n", 0, end))


def _fields(line: str, delimiter: str) -> list[str]:
    """The fields of a record."""
    try:
        fields = next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter), [])
    except csv.Error:
        fields = line.rstrip("\r\n").split(delimiter)
    return [name.strip() for name in fields]


def hint_of(line: str, delimiter: str) -> str:
    """A clause for a line with one field only: the sign that seems to part it."""
    counts = {sign: line.count(sign) for sign in _USUAL if sign != delimiter}
    sign = max(counts, key=lambda one: counts[one])
    if delimiter in line or not counts[sign]:
        return ""
    missing = _USUAL.get(delimiter, shown(delimiter))
    return f"; its first line has no {missing}, but a {_USUAL[sign]}: data.delimiter={_USUAL[sign]}"
