"""Bytes of a plain, gzip or zstd file, in order, with damage turned into a message."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import zstandard

from recpipe.data.paths import AnyPath
from recpipe.data.prepare.sniff import GZIP, ZSTD, compression_of
from recpipe.errors import DataError

READ = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_WINDOW = 31


@dataclass(frozen=True)
class Span:
    """Lines of a plain file: those whose first byte lies in [start, stop)."""

    start: int
    stop: int


def blocks(
    path: AnyPath, on_read: Callable[[int], None] = lambda count: None, span: Span | None = None
) -> Iterator[bytes]:
    """Decompressed blocks of any size; the first of a file has no byte-order mark.

    Args:
        path: plain, .gz or .zst.
        on_read: told the bytes read from disk.
        span: only these lines, of a plain file; None for all.

    Raises:
        DataError: the file cannot be read, is damaged, or ends too early.
    """
    try:
        with path.open("rb") as file:
            decoded = _decoded(path, _raw(file, on_read)) if span is None else _lines(file, span, on_read)
            yield from _without_mark(decoded) if span is None or span.start == 0 else decoded
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path} is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _without_mark(decoded: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks without a byte-order mark at their beginning."""
    first = b""
    for block in decoded:
        first += block
        if len(first) >= len(BYTE_ORDER_MARK):
            break
    yield first.removeprefix(BYTE_ORDER_MARK)
    yield from decoded


def _raw(file: BinaryIO, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of the file as they lie on disk."""
    while data := file.read(READ):
        on_read(len(data))
        yield data


def _lines(file: BinaryIO, span: Span, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """The lines of a span: from the first newline before it on, and to the first one at its end or behind it."""
    # A line begins at `start` when the byte before it is a newline, so this byte is read, too.
    position = max(span.start - 1, 0)
    file.seek(position)
    begun = span.start == 0
    for data in _raw(file, on_read):
        position += len(data)
        if not begun:
            at = data.find(b"\n") + 1
            begun = at > 0
            data = data[at:] if begun else b""
            if begun and position - len(data) >= span.stop:
                return
        last = position - len(data)
        end = data.find(b"\n", max(span.stop - 1 - last, 0)) + 1 if position >= span.stop else 0
        if end:
            yield data[:end]
            return
        yield data


def _decoded(path: AnyPath, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks by the kind of compression that the first bytes tell, or the name."""
    first = next(raw, b"")
    whole, kind = chain([first], raw), compression_of(first, path.name)
    if kind == GZIP:
        return _gunzip(path, whole)
    return _unzstd(path, whole) if kind == ZSTD else whole


def compression(path: AnyPath) -> str:
    """How a file is compressed: .gz, .zst, or empty for not at all.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return compression_of(file.read(8), path.name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _gunzip(path: AnyPath, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Members of a gzip file, one after the other."""
    decoder = zlib.decompressobj(GZIP_WINDOW)
    started = False
    for data in raw:
        while data:
            if decoder.eof:
                decoder = zlib.decompressobj(GZIP_WINDOW)
            started = True
            yield decoder.decompress(data)
            data = decoder.unused_data
    if started and not decoder.eof:
        raise DataError(f"{path} is truncated: the gzip stream has no end; fetch it again")


def _unzstd(path: AnyPath, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Frames of a zstd file, one after the other."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    started = False
    for data in raw:
        while data:
            if decoder.eof:
                decoder = zstandard.ZstdDecompressor().decompressobj()
            started = True
            yield decoder.decompress(data)
            data = decoder.unused_data
    if started and not decoder.eof:
        raise DataError(f"{path} is truncated: the zstd frame has no end; fetch it again")


def head(path: AnyPath, size: int = 1 << 16) -> bytes:
    """The first decompressed bytes, about `size` of them."""
    found = b""
    for block in blocks(path):
        found += block
        if len(found) >= size:
            break
    return found[:size]
