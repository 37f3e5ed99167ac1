"""Which format each input file has, found out before the work starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recpipe.data.prepare.chunks import ChunkReader, Reader
from recpipe.data.prepare.criteo import FIELDS, CriteoFormat, field_count
from recpipe.data.prepare.inputs import COMPRESSIONS, Source
from recpipe.data.prepare.parquet import ParquetReader, parquet_names
from recpipe.data.prepare.raw import Format
from recpipe.data.prepare.streams import Span, head
from recpipe.data.prepare.table import TableFormat, check_table
from recpipe.errors import DataError

# Not a matter of threads: work that was interrupted goes on with the same parts.
SPAN = 1 << 30
ENDINGS = {"criteo": ("", ".txt", ".tsv", ".csv"), "table": (".csv", ".tsv", ".txt", ".parquet")}


def make_formats(config: Any, sources: list[Source], carried: Sequence[str] = ()) -> list[Format]:
    """One format a file.

    Args:
        carried: columns that are kept as they are, beside what training reads.

    Raises:
        DataError: a file is empty, or not in the format, or has no labels where it needs them.
    """
    if config.name == "criteo":
        return [_criteo(config, source, carried) for source in sources]
    check_table(config)
    return [_table(config, source, carried) for source in sources]


def make_readers(
    config: Any, sources: list[Source], formats: list[Format], size: int, on_read: Callable[[int], None]
) -> list[Reader]:
    """Readers in order of file and position: several of a large plain text, one of any other file.

    Args:
        size: bytes of a chunk of text.
        on_read: told the bytes read from disk.
    """
    readers: list[Reader] = []
    for number, (source, fmt) in enumerate(zip(sources, formats, strict=True)):
        if isinstance(fmt, TableFormat) and _is_parquet(config, source):
            readers.append(ParquetReader(number, source.path, fmt, fmt.numeric, on_read))
            continue
        for span in _spans(source):
            skip = fmt.header if span is None or span.start == 0 else 0
            readers.append(ChunkReader(number, source.path, size, skip, on_read, span))
    return readers


def _spans(source: Source) -> list[Span | None]:
    """Parts of a plain text that are read at the same time; [None] where the file must be read from its beginning."""
    if source.path.suffix in COMPRESSIONS[1:] or source.size <= SPAN:
        return [None]
    starts = range(0, source.size, SPAN)
    return [Span(start, min(start + SPAN, source.size)) for start in starts]


def _is_parquet(config: Any, source: Source) -> bool:
    """By the setting, else by the name."""
    return bool(config.format == "parquet" or (not config.format and source.path.suffix == ".parquet"))


def _table(config: Any, source: Source, carried: Sequence[str]) -> Format:
    """Columns by the header, by the settings, or by Parquet's schema."""
    if _is_parquet(config, source):
        return TableFormat(config, parquet_names(source.path), 0, str(source.path), source.role, carried)
    sample = head(source.path)
    if not sample.strip():
        raise DataError(f"{source.path} holds no rows")
    if not config.header:
        return TableFormat(config, list(config.columns), 0, str(source.path), source.role, carried)
    line, newline, _ = sample.partition(b"\n")
    names = [name.strip().strip('"') for name in line.decode("utf-8", "replace").split(config.delimiter)]
    return TableFormat(config, names, len(line) + len(newline), str(source.path), source.role, carried)


def _criteo(config: Any, source: Source, carried: Sequence[str]) -> Format:
    """40 fields with a label, 39 without."""
    sample = head(source.path)
    if not sample.strip():
        raise DataError(f"{source.path} holds no rows")
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
