"""One file of tensors in the safetensors format, written and read in blocks.

Not the safetensors library: that one wants whole tensors in memory, and a table may be larger than a rank's memory. The
format is the same (8 bytes of length, a JSON header, raw values), so every safetensors reader opens these files.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from recpipe.errors import CheckpointError
from recpipe.escapes import shown
from recpipe.untrusted import Source, Value, open_regular, read_pieces

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BLOCK_BYTES = 8 << 20
MAX_DIMS, MAX_ELEMENTS = 16, 2**48
"""Of a tensor that is read; a larger one cannot be meant."""


@dataclass(frozen=True)
class Slot:
    """A tensor's place in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Written:
    """Size and CRC-32 of a file, as it should be found again."""

    num_bytes: int
    crc32: int


def write_file(
    path: Path, slots: Sequence[Slot], blocks: Callable[[Slot], Iterable[torch.Tensor]], notes: Mapping[str, str]
) -> Written:
    """Writes a file and forces it to disk.

    Args:
        slots: the tensors; written in order of falling element size, so that all values are aligned.
        blocks: the values of a slot, in order, in pieces of any size.
        notes: texts for the header.

    Raises:
        OSError: the disk is full, for example.
    """
    ordered = sorted(slots, key=lambda slot: -slot.dtype.itemsize)
    total = crc = 0
    with path.open("wb") as file:
        for part in _parts(ordered, blocks, notes):
            file.write(part)
            _begin_writing(file.fileno(), total, len(part))
            crc = zlib.crc32(part, crc)
            total += len(part)
        file.flush()
        os.fsync(file.fileno())
    return Written(total, crc)


def _begin_writing(handle: int, start: int, size: int) -> None:
    """Lets the disk begin with a part while the next one is made: otherwise it waits for fsync."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, start, size, os.POSIX_FADV_DONTNEED)


def _parts(
    slots: Sequence[Slot], blocks: Callable[[Slot], Iterable[torch.Tensor]], notes: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    yield _header(slots, notes)
    for slot in slots:
        written = 0
        for block in blocks(slot):
            part = raw(block)
            written += len(part)
            yield part
        assert written == slot.num_bytes, f"{slot.name}: {written} bytes of {slot.num_bytes}"


def _header(slots: Sequence[Slot], notes: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    start = 0
    for slot in slots:
        stop = start + slot.num_bytes
        fields[slot.name] = {"dtype": NAMES[slot.dtype], "shape": list(slot.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def row_blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in blocks of rows, contiguous and on the CPU: a strided or a device tensor is never copied whole."""
    if tensor.dim() == 0:
        yield tensor.detach().cpu()
        return
    for rows in row_ranges(tuple(tensor.shape), tensor.element_size()):
        yield tensor.detach()[rows].cpu().contiguous()


def row_ranges(shape: tuple[int, ...], element_size: int) -> Iterator[slice]:
    """Ranges of rows of about `BLOCK_BYTES`."""
    rows = max(BLOCK_BYTES // max(math.prod(shape[1:]) * element_size, 1), 1)
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


def checksum(path: Path, size: int | None = None) -> Written:
    """Reads a file, no further than one byte beyond `size`, and gives what `write_file` gave for it."""
    total = crc = 0
    for part in read_pieces(path, path.stat().st_size if size is None else size, BLOCK_BYTES):
        crc = zlib.crc32(part, crc)
        total += len(part)
    return Written(total, crc)


class TensorFile:
    """A file for reading; its header is checked against its size, so that every tensor is there.

    Raises:
        CheckpointError: the header cannot be read or true, or the file has another size than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = Source(path, CheckpointError, large=True)
        try:
            with open_regular(path) as file:
                fields, self._start, size = _read_header(file, self._source)
        except OSError as error:
            raise self._source.unreadable(error) from None
        self.slots: dict[str, Slot] = {}
        self._places: dict[str, tuple[int, int]] = {}
        for name, field in fields.items():
            self.slots[name], self._places[name] = _slot(name, field, size - self._start)
        _require_gapless(self._source, sorted(self._places.values()), size - self._start)

    def read(self, name: str) -> torch.Tensor:
        """A tensor of the file, mapped: what is not touched is not read. Writing to it does not change the file.

        Raises:
            CheckpointError: the file has no such tensor.
        """
        if name not in self.slots:
            raise self._source.damaged(f"it has no tensor {shown(name)}")
        slot, (start, stop) = self.slots[name], self._places[name]
        if start == stop:
            return torch.empty(slot.shape, dtype=slot.dtype)
        mapped = np.memmap(self.path, dtype=np.uint8, mode="c", offset=self._start + start, shape=(stop - start,))
        return torch.from_numpy(mapped).view(slot.dtype).reshape(slot.shape)


def is_shape(sizes: Any) -> bool:
    """Whether this is a list of sizes, or of offsets, whose product cannot overflow."""
    if type(sizes) is not list or len(sizes) > MAX_DIMS:
        return False
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in sizes):
        return False
    return math.prod(size for size in sizes if size) <= MAX_ELEMENTS


def _read_header(file: BinaryIO, source: Source) -> tuple[dict[str, Value], int, int]:
    """The record of each tensor, where values begin, and the size of the file."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8:
        raise source.damaged(f"its header has {length:,} bytes, the file {size:,}" if first else "it is empty")
    if length > source.limit:
        raise source.damaged(f"its header has {length:,} bytes; {source.limit:,} are the most")
    fields = source.parsed(source.decoded(file.read(length))).fields()
    fields.pop("__metadata__", None)
    return fields, 8 + length, size


def _slot(name: str, value: Value, num_bytes: int) -> tuple[Slot, tuple[int, int]]:
    """A tensor and its place among the `num_bytes` of all values."""
    raw = value.fields(("dtype", "shape", "data_offsets"), ())
    shape, place = raw["shape"].raw, raw["data_offsets"].raw
    if not is_shape(shape):
        raise raw["shape"].wrong(f"is no list of at most {MAX_DIMS} sizes")
    slot = Slot(name, DTYPES[raw["dtype"].text(DTYPES)], tuple(shape))
    if type(place) is not list or list(map(type, place)) != [int, int] or not 0 <= place[0] <= place[1]:
        raise raw["data_offsets"].wrong("is no list of two offsets")
    if place[1] > num_bytes:
        raise value.source.error(f"{value.source.path}: is cut short: {num_bytes:,} bytes of values of {place[1]:,}")
    if place[1] - place[0] != slot.num_bytes:
        raise value.wrong(f"has {place[1] - place[0]:,} bytes; its type and shape take {slot.num_bytes:,}")
    return slot, (place[0], place[1])


def _require_gapless(source: Source, places: list[tuple[int, int]], num_bytes: int) -> None:
    """Raises CheckpointError where tensors share bytes, or bytes belong to none."""
    end = 0
    for start, stop in places:
        if start != end:
            raise source.damaged(f"its tensors {'overlap' if start < end else 'leave a gap'} at byte {start:,} of its values")
        end = stop
    if end != num_bytes:
        raise source.damaged(f"it has {num_bytes - end:,} bytes behind its tensors")
