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
from typing import Any

import numpy as np
import torch

from recpipe.errors import CheckpointError

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


def checksum(path: Path) -> Written:
    """Reads a file and gives what `write_file` gave for it."""
    total = crc = 0
    with path.open("rb") as file:
        while part := file.read(BLOCK_BYTES):
            crc = zlib.crc32(part, crc)
            total += len(part)
    return Written(total, crc)


class TensorFile:
    """A file for reading.

    Raises:
        CheckpointError: the header cannot be read, or the file is shorter than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._start, places = _read_header(path)
            self._places = {name: tuple(field["data_offsets"]) for name, field in places.items()}
            self.slots = {name: Slot(name, DTYPES[f["dtype"]], tuple(f["shape"])) for name, f in places.items()}
            needed = self._start + max((stop for _, stop in self._places.values()), default=0)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{path}: is damaged or no file of tensors ({type(error).__name__})") from error
        if path.stat().st_size < needed:
            raise CheckpointError(f"{path}: is cut short: {path.stat().st_size} bytes of {needed}")

    def read(self, name: str) -> torch.Tensor:
        """A tensor of the file, mapped: what is not touched is not read. Writing to it does not change the file."""
        slot, (start, stop) = self.slots[name], self._places[name]
        if start == stop:
            return torch.empty(slot.shape, dtype=slot.dtype)
        mapped = np.memmap(self.path, dtype=np.uint8, mode="c", offset=self._start + start, shape=(stop - start,))
        return torch.from_numpy(mapped).view(slot.dtype).reshape(slot.shape)


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where values begin, and the record of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("the header is longer than the file")
        fields = json.loads(file.read(length))
    return 8 + length, {name: field for name, field in fields.items() if name != "__metadata__"}
