"""A file as chunks of whole records: the same cuts every time it is read."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from recpipe.data.paths import AnyPath
from recpipe.data.prepare.records import find_records
from recpipe.data.prepare.streams import Span, blocks

SHOWN = 160


@dataclass(frozen=True)
class Chunk:
    """Whole lines (or rows) of a file.

    Args:
        index: number of the chunk in its file.
        data: the lines, each ended by a newline; of a line longer than a chunk, only its beginning; or typed columns.
        oversized: the chunk is the beginning of one line that is longer than a chunk.
    """

    index: int
    data: bytes | pa.Table
    oversized: bool = False


class Reader:
    """Gives the chunks of a file or of a part of it, one at a time, to whichever thread asks next.

    Attributes:
        source: number of the file.
        lock: held while asking.
        finished: the end was reached.
        num_chunks: chunks given so far.
        checksum, num_bytes: of what was read so far.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.finished = False
        self.num_chunks = 0
        self.checksum = 0
        self.num_bytes = 0
        self._chunks: Iterator[Chunk] = iter(())

    def next(self) -> Chunk | None:
        """The next chunk, or None at the end; call it with the lock held."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self.finished = True
        else:
            self.num_chunks = chunk.index + 1
        return chunk


class ChunkReader(Reader):
    """Gives the chunks of text.

    Args:
        source: number of the file.
        path: plain, gz or zst text.
        size: bytes of a chunk, before it is cut at its last newline.
        skip: bytes at the start that are no rows (a header).
        on_read: told the bytes read from disk.
        span: only these lines of the file.
        delimiter: between fields that quotes may enclose: no cut is made inside of quotes.
    """

    def __init__(
        self,
        source: int,
        path: AnyPath,
        size: int,
        skip: int = 0,
        on_read: Callable[[int], None] = lambda count: None,
        span: Span | None = None,
        delimiter: bytes | None = None,
    ) -> None:
        super().__init__(source)
        self._size, self._skip, self._delimiter = size, skip, delimiter
        self._blocks = blocks(path, on_read, span)
        self._pending = bytearray()
        self._ended = False
        self._chunks = self._cut()

    def _fill(self) -> None:
        """Read until a whole chunk is there or the file ends."""
        while len(self._pending) < self._size and not self._ended:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
                break
            self.checksum = zlib.crc32(block, self.checksum)
            self.num_bytes += len(block)
            if self._skip:
                used = min(self._skip, len(block))
                block, self._skip = block[used:], self._skip - used
            self._pending += block

    def _cut(self) -> Iterator[Chunk]:
        """Chunks that end with their last newline."""
        index = 0
        self._fill()
        while self._pending:
            at = self._cut_at()
            if self._ended and len(self._pending) <= self._size:
                yield Chunk(index, self._rest())
            elif at:
                yield Chunk(index, self._take(at))
            else:
                yield Chunk(index, self._drop_line(), oversized=True)
            index += 1
            self._fill()

    def _cut_at(self) -> int:
        """Behind the last newline of the chunk that ends a record; 0 where there is none."""
        last = self._pending.rfind(b"\n", 0, self._size) + 1
        if self._delimiter is None or self._pending.find(b'"', 0, last) < 0:
            return last
        ended = find_records(bytes(self._pending[: self._size]), self._delimiter, False).last_end()
        # A value larger than a chunk is a quote that is never closed: its first line is a broken one.
        return ended or self._pending.find(b"\n", 0, self._size) + 1

    def _take(self, count: int) -> bytes:
        """The first bytes, removed from what is pending."""
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data

    def _rest(self) -> bytes:
        """All that is pending, ended by a newline."""
        data = self._take(len(self._pending))
        return data if data.endswith(b"\n") else data + b"\n"

    def _drop_line(self) -> bytes:
        """Skip a line longer than a chunk; keeps only how it begins."""
        beginning = bytes(self._pending[:SHOWN])
        while True:
            at = self._pending.find(b"\n") + 1
            if at:
                del self._pending[:at]
                return beginning
            self._pending.clear()
            self._fill()
            if not self._pending:
                return beginning
