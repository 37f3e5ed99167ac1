"""Lines to raw rows: each line lands among the rows or among the bad lines, never both, never neither.

A block is parsed whole. Only when that fails is it cut in halves, down to the single line that is to blame, so that one
rule decides for a line whatever its neighbours are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recpipe.data.prepare.chunks import Chunk
from recpipe.data.prepare.raw import BadLine, Converted, Format, Raw, shown


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
    """Raw rows of some whole lines, in order.

    Args:
        data: lines, each ended by a newline.
        fmt: the kind of file.
    """
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    pieces: list[tuple[int, pa.Table]] = []
    bad: list[BadLine] = []
    lines = data.count(b"\n")
    _parse(data, 0, lines, fmt, pieces, bad)
    if not pieces:
        pieces = [(0, fmt.read(fmt.example).slice(0, 0))]
    columns = pa.concat_tables([piece for _, piece in pieces]).combine_chunks()
    converted = fmt.convert(columns)
    if converted.reasons:
        numbers = np.concatenate([first + np.arange(piece.num_rows) for first, piece in pieces])
        text = data.split(b"\n")
        bad += [BadLine(int(numbers[r]), why, shown(text[numbers[r]])) for r, why in converted.reasons.items()]
        converted = fmt.convert(_without(columns, converted))
    bad.sort(key=lambda entry: entry.line)
    return Raw(converted.table, converted.ranges, bad, lines, converted.samples)


def _parse(
    data: bytes, first: int, lines: int, fmt: Format, pieces: list[tuple[int, pa.Table]], bad: list[BadLine]
) -> None:
    """Parse these lines, or cut them in halves; `first` is the number of the first one."""
    if not lines:
        return
    columns = _read(data, lines, fmt)
    if columns is not None:
        pieces.append((first, columns))
    elif lines == 1:
        bad.append(BadLine(first, fmt.explain(data[:-1]) if len(data) > 1 else "empty line", shown(data[:-1])))
    else:
        middle = data.find(b"\n", len(data) // 2) + 1
        if middle in (0, len(data)):
            middle = data.rfind(b"\n", 0, len(data) - 1) + 1
        upper = data[:middle].count(b"\n")
        _parse(data[:middle], first, upper, fmt, pieces, bad)
        _parse(data[middle:], first + upper, lines - upper, fmt, pieces, bad)


def _read(data: bytes, lines: int, fmt: Format) -> pa.Table | None:
    """The columns, or None where the lines and the rows do not correspond one to one."""
    # The engine takes a lone carriage return for the end of a line and an empty line for a row of missing values.
    if b"\r" in data or data.startswith(b"\n") or b"\n\n" in data:
        return None
    try:
        columns = fmt.read(data)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return columns if columns.num_rows == lines else None
