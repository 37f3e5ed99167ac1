"""Lines to raw rows: each record lands among the rows or among the bad lines, never both, never neither.

A record is a line, or several where a quoted value has newlines. A block is parsed whole. Only when that fails is it cut
in halves, down to the single record that is to blame, so that one rule decides for a record whatever its neighbours are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recpipe.data.prepare.chunks import Chunk
from recpipe.data.prepare.raw import BadLine, Converted, Format, Raw, shown
from recpipe.data.prepare.records import NEWLINE, Records, find_records

NEVER_CLOSED = "a quote is never closed: a value or its quotes do not parse"


def parse_chunk(chunk: Chunk, fmt: Format) -> Raw:
    """Raw rows of a chunk."""
    if isinstance(chunk.data, pa.Table):
        return _parse_rows(chunk.data, fmt)
    if chunk.oversized:
        empty = parse_lines(b"", fmt)
        return Raw(
            empty.table, empty.ranges, [BadLine(0, "line is longer than a chunk of the input", shown(chunk.data))], 1
        )
    return parse_lines(chunk.data, fmt)


def _parse_rows(columns: pa.Table, fmt: Format) -> Raw:
    """Raw rows of typed columns."""
    bad: list[BadLine] = []
    converted = fmt.convert(columns)
    if converted.reasons:
        bad = [BadLine(row, reason, "") for row, reason in sorted(converted.reasons.items())]
        converted = fmt.convert(_without(columns, converted))
    return Raw(converted.table, converted.ranges, bad, columns.num_rows, converted.samples)


def _without(columns: pa.Table, converted: Converted) -> pa.Table:
    """The rows that have no reason to be left out."""
    keep = np.ones(columns.num_rows, dtype=bool)
    keep[list(converted.reasons)] = False
    return columns.filter(pa.array(keep)).combine_chunks()


def parse_lines(data: bytes, fmt: Format) -> Raw:
    """Raw rows of some whole lines, in order. Blank lines are no rows.

    Args:
        data: lines, each ended by a newline.
        fmt: the kind of file.
    """
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    lines = data.count(b"\n")
    columns = _read_lines(data, lines, fmt)
    if columns is not None:
        return _converted(_Found([(0, columns)]), data, None, fmt, lines)
    records, found = _Lines.of(data, fmt), _Found()
    _parse(records, 0, records.count, fmt, found)
    return _converted(found, data, records, fmt, lines)


@dataclass
class _Found:
    """What became of the records: rows with the number of their first record, bad lines, blank ones."""

    pieces: list[tuple[int, pa.Table]] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    blank: int = 0


@dataclass(frozen=True)
class _Lines:
    """The records of a chunk.

    Args:
        data: their text; blank lines are not in it.
        numbers: int64, the line of the chunk in which each record begins.
        starts: int64, where each begins, and the end of the text.
        broken: bool, those with a quote that is never closed.
    """

    data: bytes
    numbers: np.ndarray
    starts: np.ndarray
    broken: np.ndarray

    @classmethod
    def of(cls, data: bytes, fmt: Format) -> _Lines:
        """Cut a text in records."""
        newlines = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == NEWLINE)
        found = Records(newlines + 1)
        if fmt.delimiter is not None and b'"' in data:
            found = find_records(data, fmt.delimiter, True, lambda line: _is_row(line, fmt))
        starts = np.concatenate([[0], found.ends[:-1]]).astype(np.int64)[: len(found.ends)]
        broken = np.zeros(len(starts), dtype=bool)
        broken[np.searchsorted(starts, sorted(found.broken), side="right") - 1] = True
        kept = found.ends - starts > 1
        if not kept.all():
            data = b"".join(data[a:b] for a, b in zip(starts[kept], found.ends[kept], strict=True))
        lengths = (found.ends - starts)[kept]
        places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(data, np.searchsorted(newlines, starts[kept]), places, broken[kept])

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.numbers)

    def text(self, first: int, stop: int) -> bytes:
        """The text of some of them."""
        return self.data[self.starts[first] : self.starts[stop]]


def _converted(found: _Found, data: bytes, records: _Lines | None, fmt: Format, lines: int) -> Raw:
    """Typed rows of what was read; those that are not usable join the bad lines."""
    pieces, bad = found.pieces or [(0, fmt.read(fmt.example).slice(0, 0))], found.bad
    columns = pa.concat_tables([piece for _, piece in pieces]).combine_chunks()
    converted = fmt.convert(columns)
    if converted.reasons:
        named = records or _Lines.of(data, fmt)
        rows = np.concatenate([first + np.arange(piece.num_rows) for first, piece in pieces])
        for row, why in converted.reasons.items():
            place = int(rows[row])
            bad.append(BadLine(int(named.numbers[place]), why, shown(named.text(place, place + 1)[:-1])))
        converted = fmt.convert(_without(columns, converted))
    bad.sort(key=lambda entry: entry.line)
    skipped = 0 if records is None else lines - records.count + found.blank
    return Raw(converted.table, converted.ranges, bad, lines, converted.samples, skipped)


def _parse(records: _Lines, first: int, stop: int, fmt: Format, found: _Found) -> None:
    """Parse these records, or cut them in halves."""
    if first == stop:
        return
    data, broken = records.text(first, stop), records.broken[first:stop].any()
    columns = None if broken else _read(data, stop - first, fmt)
    if columns is not None:
        found.pieces.append((first, columns))
    elif stop - first > 1:
        middle = (first + stop) // 2
        _parse(records, first, middle, fmt, found)
        _parse(records, middle, stop, fmt, found)
    elif not data.strip(b" \n"):
        found.blank += 1
    else:
        why = NEVER_CLOSED if broken else fmt.explain(data[:-1])
        found.bad.append(BadLine(int(records.numbers[first]), why, shown(data[:-1])))


def _read_lines(data: bytes, lines: int, fmt: Format) -> pa.Table | None:
    """The columns of lines each of which is a record, or None where some are not."""
    # The engine takes an empty line for a row of missing values, and a quote that is open at the end for a closed one.
    if not lines or data.startswith(b"\n") or b"\n\n" in data:
        return None
    last = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
    if fmt.delimiter is not None and b'"' in last and find_records(last, fmt.delimiter, True).broken:
        return None
    return _read(data, lines, fmt)


def _read(data: bytes, records: int, fmt: Format) -> pa.Table | None:
    """The columns, or None where the records and the rows do not correspond one to one."""
    # The engine takes a lone carriage return for the end of a line.
    if b"\r" in data:
        return None
    try:
        columns = fmt.read(data)
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    return columns if columns.num_rows == records else None


def _is_row(line: bytes, fmt: Format) -> bool:
    """Whether a line is a usable row by itself."""
    if not line.strip():
        return False
    columns = _read(line, 1, fmt)
    return columns is not None and not fmt.convert(columns).reasons
