"""Bytes of a plain, gz or zst file, in order, with damage turned into a message."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from recpipe.errors import DataError

READ = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = 31


def blocks(path: Path, on_read: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """Decompressed blocks of any size; the first has no byte-order mark.

    Args:
        path: plain, .gz or .zst.
        on_read: told the bytes read from disk.

    Raises:
        DataError: the file cannot be read, is damaged, or ends too early.
    """
    try:
        with path.open("rb") as file:
            first = True
            for block in _decoded(path, _raw(file, on_read)):
                if first and block:
                    block, first = block.removeprefix(BYTE_ORDER_MARK), False
                yield block
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path} is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _raw(file: BinaryIO, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of the file as they lie on disk."""
    while data := file.read(READ):
        on_read(len(data))
        yield data


def _decoded(path: Path, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks by the kind of compression that the name tells."""
    if path.suffix == ".gz":
        return _gunzip(path, raw)
    if path.suffix == ".zst":
        return _unzstd(path, raw)
    return raw


def _gunzip(path: Path, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Members of a gzip file, one after the other."""
    decoder = zlib.decompressobj(GZIP)
    started = False
    for data in raw:
        while data:
            if decoder.eof:
                decoder = zlib.decompressobj(GZIP)
            started = True
            yield decoder.decompress(data)
            data = decoder.unused_data
    if started and not decoder.eof:
        raise DataError(f"{path} is truncated: the gzip stream has no end; fetch it again")


def _unzstd(path: Path, raw: Iterator[bytes]) -> Iterator[bytes]:
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


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first decompressed bytes, about `size` of them."""
    found = b""
    for block in blocks(path):
        found += block
        if len(found) >= size:
            break
    return found[:size]
