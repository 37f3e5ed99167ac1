"""Parquet files as chunks of rows, with the column types that `TableFormat` expects."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recpipe.data.paths import AnyPath
from recpipe.data.prepare.chunks import Chunk, Reader
from recpipe.data.prepare.raw import CARRIED
from recpipe.data.prepare.table import TableFormat
from recpipe.errors import DataError

ROWS = 1 << 15


def parquet_names(path: AnyPath) -> list[str]:
    """Column names of a Parquet file.

    Raises:
        DataError: it is not one.
    """
    try:
        with path.open("rb") as file:
            return list(pq.read_schema(file).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


class ParquetReader(Reader):
    """Gives the chunks of a Parquet file to whichever thread asks next; as `ChunkReader` does for text."""

    def __init__(
        self, source: int, path: AnyPath, fmt: TableFormat, numeric: frozenset[str], on_read: Callable[[int], None]
    ) -> None:
        super().__init__(source)
        self._path, self._fmt, self._numeric = path, fmt, numeric
        self._chunks = self._read(on_read)

    def _read(self, on_read: Callable[[int], None]) -> Iterator[Chunk]:
        """Row batches of the columns that are used."""
        try:
            with self._path.open("rb") as opened:
                file = pq.ParquetFile(opened, pre_buffer=False)
                share = self._path.stat().st_size // max(1, -(-file.metadata.num_rows // ROWS))
                batches = file.iter_batches(batch_size=ROWS, columns=self._fmt.used, use_threads=False)
                for index, batch in enumerate(batches):
                    on_read(share)
                    text = str(batch.num_rows).encode()
                    self.checksum = zlib.crc32(text, self.checksum)
                    self.num_bytes += len(text)
                    yield Chunk(index, self._columns(batch))
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self._path} is damaged: {error}") from error

    def _columns(self, batch: pa.RecordBatch) -> pa.Table:
        """The columns in the types that are read; carried ones in their own, under another name."""
        kept = {f"{CARRIED}{name}": batch.column(name) for name in self._fmt.carried}
        return pa.table({**{name: self._typed(batch, name) for name in self._fmt.read_names}, **kept})

    def _typed(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """float64, binary, or lists of binary."""
        column = batch.column(name)
        try:
            if name in self._numeric:
                return pc.cast(column, pa.float64())
            if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                return pc.cast(pc.cast(column, pa.list_(pa.string())), pa.list_(pa.binary()))
            return pc.cast(pc.cast(column, pa.string()), pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{self._path}: column {name} of type {column.type} cannot be used: {error}") from error
