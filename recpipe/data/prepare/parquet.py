"""Parquet files as chunks of rows, with the column types that `TableFormat` expects."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recpipe.data.paths import AnyPath
from recpipe.data.prepare.chunks import Chunk, Reader
from recpipe.data.prepare.raw import CARRIED
from recpipe.data.prepare.table import TableFormat
from recpipe.errors import DataError
from recpipe.escapes import shown

ROWS = 1 << 15


@contextmanager
def arrow_errors(path: AnyPath, what: str) -> Iterator[None]:
    """Whatever Arrow raises becomes one message.

    Args:
        what: a clause about the file, such as "is damaged".

    Raises:
        DataError: the file, `what`, and the first line of the reason.
    """
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} {what}: {shown(reason)}") from error


def parquet_names(path: AnyPath) -> list[str]:
    """Column names of a Parquet file.

    Raises:
        DataError: it is not one.
    """
    with arrow_errors(path, "is not a readable Parquet file"), path.open("rb") as file:
        return list(pq.read_schema(file).names)


class ParquetReader(Reader):
    """Gives the chunks of a Parquet file to whichever thread asks next; as `ChunkReader` does for text."""

    def __init__(self, source: int, path: AnyPath, fmt: TableFormat, on_read: Callable[[int], None]) -> None:
        super().__init__(source)
        self._path, self._fmt = path, fmt
        self._chunks = self._read(on_read)

    def _read(self, on_read: Callable[[int], None]) -> Iterator[Chunk]:
        """Row batches of the columns that are used."""
        with arrow_errors(self._path, "is damaged or of a kind that is not read"), self._path.open("rb") as opened:
            file = pq.ParquetFile(opened, pre_buffer=False)
            share = self._path.stat().st_size // max(1, -(-file.metadata.num_rows // ROWS))
            batches = file.iter_batches(batch_size=ROWS, columns=self._fmt.used, use_threads=False)
            for index, batch in enumerate(batches):
                on_read(share)
                text = str(batch.num_rows).encode()
                self.checksum = zlib.crc32(text, self.checksum)
                self.num_bytes += len(text)
                yield Chunk(index, self._fmt.with_keys(self._columns(batch)))

    def _columns(self, batch: pa.RecordBatch) -> pa.Table:
        """The columns in the types that are read; carried ones in their own, under another name."""
        used = self._fmt.used
        kept = {f"{CARRIED}{name}": batch.column(name) for name in self._fmt.carried if name in used}
        return pa.table({**{n: self._typed(batch.column(n), n) for n in self._fmt.read_names}, **kept})

    def _typed(self, column: pa.Array, name: str) -> pa.Array:
        """A column as float64, binary, or lists of binary.

        Raises:
            DataError: it holds something else than values, or lists where no setting says so.
        """
        column = _plain(column)
        kind, where = column.type, f"{self._path}: column {shown(name)}"
        if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_union(kind):
            raise DataError(f"{where} holds records ({shown(kind)}), no values; write its fields as columns of their own")
        if _is_list(kind):
            self._check_list(kind, name, where)
            return _texts_of_lists(column)
        with arrow_errors(self._path, f"cannot be used: column {shown(name)} is of type {shown(kind)}"):
            if name in self._fmt.numeric:
                return pc.cast(column, pa.float64())
            return _texts(column)

    def _check_list(self, kind: pa.DataType, name: str, where: str) -> None:
        """Raises DataError where a list cannot be read."""
        if name in self._fmt.numeric:
            raise DataError(f"{where} holds lists ({shown(kind)}), no numbers; write each place of the list as a column")
        if name in self._fmt.categorical and name not in self._fmt.multi_valued:
            raise DataError(f"{where} holds lists: data.multi_valued=[{shown(name)}]")
        if pa.types.is_nested(_value_type(kind)):
            raise DataError(f"{where} holds lists of lists or of records ({shown(kind)}); lists of values are read")


def _is_list(kind: pa.DataType) -> bool:
    """Lists of every kind: of 32 and 64 bits, of fixed size, views."""
    views = (getattr(pa.types, name, None) for name in ("is_list_view", "is_large_list_view"))
    usual = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(usual or any(view is not None and view(kind) for view in views))


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Of the entries of a list, behind a dictionary."""
    inner = kind.value_type
    return inner.value_type if pa.types.is_dictionary(inner) else inner


def _plain(column: pa.Array) -> pa.Array:
    """Without a dictionary and without an extension of the type."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return _plain(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column


def _texts_of_lists(column: pa.Array) -> pa.Array:
    """Lists of texts with 32-bit offsets, from lists of any kind."""
    kind = column.type
    if not pa.types.is_list(kind):
        column = pc.cast(column, pa.list_(kind.value_type))
    return pc.cast(column, pa.list_(pa.binary())) if pa.types.is_binary(_value_type(kind)) else _cast_entries(column)


def _cast_entries(column: pa.Array) -> pa.Array:
    """The same lists with the text of each entry."""
    entries = _texts(_plain(column.flatten()))
    lengths = column.value_lengths().fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, entries, mask=column.is_null())


def _texts(column: pa.Array) -> pa.Array:
    """The text of each value, as bytes."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pc.cast(column, pa.binary())
    return pc.cast(pc.cast(column, pa.string()), pa.binary())
