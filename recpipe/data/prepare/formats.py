"""Which format each input file has, found out before the work starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from recpipe.data.prepare.chunks import ChunkReader, Reader
from recpipe.data.prepare.criteo import FIELDS, CriteoFormat, field_count
from recpipe.data.prepare.header import delimiter_of, hint_of, read_header
from recpipe.data.prepare.inputs import Source
from recpipe.data.prepare.listing import ending_of
from recpipe.data.prepare.parquet import ParquetReader, parquet_names
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.roles import TEST
from recpipe.data.prepare.sniff import PARQUET, kind_of, wide_kind
from recpipe.data.prepare.streams import Span, compression, head
from recpipe.data.prepare.table import TableFormat, check_table
from recpipe.errors import ConfigError, DataError, nearest
from recpipe.escapes import shown

# Not a matter of threads: work that was interrupted goes on with the same parts.
SPAN = 1 << 30
ENDINGS = {
    "criteo": ("", ".txt", ".tsv", ".csv"),
    "table": (".csv", ".tsv", ".psv", ".txt", ".parquet"),
}
FORMATS = ("csv", "parquet")


def make_formats(
    config: Any, sources: list[Source], carried: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> list[Format]:
    """One format a file. A file without a line is read like the others of its role.

    Args:
        carried: columns that are kept as they are, beside what training reads.
        say: told the files that hold no line.

    Raises:
        DataError: a file is empty, or not in the format, or has no labels where it needs them.
    """
    if config.name == "table":
        check_table(config)
        if config.format and config.format not in FORMATS:
            raise ConfigError(f"data.format={config.format} is unknown; {nearest(config.format, FORMATS)}")
    found = [_format(config, source, carried) for source in sources]
    blank = [source for source, fmt in zip(sources, found, strict=True) if fmt is None]
    if blank:
        say(f"no rows are in {', '.join(shown(source.path) for source in blank)}")
    return [fmt or _like_others(source, sources, found) for source, fmt in zip(sources, found, strict=True)]


def _like_others(source: Source, sources: list[Source], found: list[Format | None]) -> Format:
    """The format of the others of this role, for a file without a line."""
    for other, fmt in zip(sources, found, strict=True):
        if fmt is not None and other.role == source.role:
            alike = copy.copy(fmt)
            alike.header = alike.header_lines = 0
            return alike
    raise DataError(f"{source.path} holds no rows")


def with_labels(config: Any, sources: list[Source], say: Callable[[str], None]) -> list[Source]:
    """Without the test files that only their names call so and that have no labels: nothing can be measured on them."""
    named = [source for source in sources if source.by_name and source.role == TEST]
    bare = [source for source in named if not _has_labels(config, source)]
    if bare:
        files = ", ".join(shown(source.path) for source in bare)
        say(f"left out are {files} (no labels: score them with recpipe score input=FILE, or give data.test_path)")
    return [source for source in sources if source not in bare]


def _has_labels(config: Any, source: Source) -> bool:
    """Whether a file has a column of labels, as far as its beginning tells."""
    if config.name == "criteo":
        return field_count(head(source.path)) != FIELDS - 1
    fmt = _format(config, source)
    return not isinstance(fmt, TableFormat) or fmt.is_labelled


def make_readers(
    config: Any, sources: list[Source], formats: list[Format], size: int, on_read: Callable[[int], None]
) -> list[Reader]:
    """Readers in order of file and position: several of a large plain text without quotes, one of any other file.

    Args:
        size: bytes of a chunk of text.
        on_read: told the bytes read from disk.
    """
    readers: list[Reader] = []
    for number, (source, fmt) in enumerate(zip(sources, formats, strict=True)):
        if isinstance(fmt, TableFormat) and fmt.is_parquet:
            readers.append(ParquetReader(number, source.path, fmt, on_read))
            continue
        for span in _spans(source, fmt):
            skip = fmt.header if span is None or span.start == 0 else 0
            readers.append(ChunkReader(number, source.path, size, skip, on_read, span, fmt.delimiter))
    return readers


def _spans(source: Source, fmt: Format) -> list[Span | None]:
    """Parts of a plain text that are read at the same time; [None] where the file must be read from its beginning."""
    # Whether a newline in the middle of a file lies inside of quotes is known only from its beginning.
    if source.size <= SPAN or fmt.delimiter is not None or compression(source.path):
        return [None]
    starts = range(0, source.size, SPAN)
    return [Span(start, min(start + SPAN, source.size)) for start in starts]


def _format(config: Any, source: Source, carried: Sequence[str] = ()) -> Format | None:
    """The format of a file; None where it has no line."""
    sample = head(source.path)
    if not sample.strip():
        return None
    return (_criteo if config.name == "criteo" else _table)(config, source, sample, carried)


def _table(config: Any, source: Source, sample: bytes, carried: Sequence[str]) -> Format:
    """Columns by the header, by the settings, or by Parquet's schema."""
    path, kind = source.path, kind_of(sample)
    if kind == PARQUET and not compression(path):
        if config.format == "csv":
            raise DataError(f"{path} is a Parquet file: data.format=parquet, or leave data.format out")
        return TableFormat(config, parquet_names(path), str(path), source.role, carried, keys=source.keys, is_parquet=True)
    kind = kind or wide_kind(sample)
    if kind:
        where = f"{kind} inside of {compression(path)[1:]}" if compression(path) else kind
        raise DataError(
            f"{path} is a file of another format ({where}); data=table reads Parquet and delimited text in UTF-8, "
            f"the text plain, .gz or .zst: convert it"
        )
    if config.format == "parquet" or (not config.format and ending_of(path.name) == ".parquet"):
        raise DataError(f"{path} is not a readable Parquet file: its first bytes are not PAR1; text needs data.format=csv")
    delimiter = delimiter_of(config.delimiter, path)
    first = sample.lstrip(b"\r\n").split(b"\n", 1)[0].decode("utf-8", "replace")
    about: dict[str, Any] = {"delimiter": delimiter, "keys": source.keys, "hint": hint_of(first, delimiter)}
    if not config.header:
        return TableFormat(config, list(config.columns), str(path), source.role, carried, **about)
    header = read_header(path, sample, delimiter)
    return TableFormat(config, header.names, str(path), source.role, carried, header.size, header.lines, **about)


def _criteo(config: Any, source: Source, sample: bytes, carried: Sequence[str]) -> Format:
    """40 fields with a label, 39 without."""
    kind = kind_of(sample)
    if kind:
        advice = "; data=table reads it" if kind == PARQUET else ""
        raise DataError(f"{source.path} is not in the Criteo format: it is a file of another one ({kind}){advice}")
    fields = field_count(sample)
    if fields not in (FIELDS, FIELDS - 1):
        raise DataError(
            f"{source.path} is not in the Criteo format: its lines have {fields} tab-separated fields, "
            f"expected {FIELDS} (label, 13 integers, 26 hex values) or {FIELDS - 1} (no label); "
            f"data=table reads other files"
        )
    labelled = fields == FIELDS
    if not labelled and source.role != "test":
        raise DataError(
            f"{source.path} has no labels ({fields} fields a line, labelled lines have {FIELDS}): "
            f"it cannot be trained or validated on; to score it, give it as data.test_path"
        )
    return CriteoFormat(labelled, config.dense_ids, carried)
