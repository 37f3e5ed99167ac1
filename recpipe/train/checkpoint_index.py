"""`index.json` of a checkpoint: where every piece of every tensor lies, checked as a whole when it is read.

After `read_index` every tensor is covered by its pieces exactly once, and every piece is in its file with its type and shape:
nothing that reads by the index can meet memory that nobody wrote.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from recpipe.errors import CheckpointError
from recpipe.escapes import shown
from recpipe.train.checkpoint_file import DTYPES, MAX_DIMS, TensorFile, is_shape
from recpipe.train.checkpoint_manifest import read_manifest, read_text
from recpipe.untrusted import Source, Value, member

INDEX = "index.json"
_KEYS = {"dtype", "shape", "pieces"}


def read_index(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint: name -> dtype, shape, and pieces (offsets, sizes, file, name in the file).

    Raises:
        CheckpointError: the index is damaged, or does not fit the files.
    """
    source = Source(folder / INDEX, CheckpointError, large=True)
    records = source.parsed(read_text(folder, INDEX, large=True)).fields()
    files = _Files(folder, source)
    for name, value in records.items():
        _check_record(name, value, files)
    return {name: value.raw for name, value in records.items()}


def listed_tensors(folder: Path, name: str) -> TensorFile:
    """A file of tensors that the manifest of a directory lists.

    Raises:
        CheckpointError: it is not listed, or damaged.
    """
    if name not in read_manifest(folder)["files"]:
        raise CheckpointError(f"{folder}: has no {name}")
    return TensorFile(member(folder, name, Source(folder / name, CheckpointError)))


class _Files:
    """The files that an index names, opened once, and the tensors of theirs that it has named."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._folder, self._source = folder, source
        self._listed = read_manifest(folder)["files"]
        self._open: dict[str, TensorFile] = {}
        self._used: set[tuple[str, str]] = set()

    def problem(self, dtype: str, sizes: list[int], file: str, key: str) -> str:
        """What is wrong with a piece in its file; empty if nothing is."""
        if file not in self._open:
            if file not in self._listed:
                return f"lies in {shown(file)}, which the checkpoint does not list"
            self._open[file] = TensorFile(member(self._folder, file, self._source))
        slot = self._open[file].slots.get(key)
        if slot is None:
            return f"is not in {shown(file)}"
        if slot.dtype is not DTYPES[dtype] or list(slot.shape) != sizes:
            return f"has {dtype} {_short(sizes)} in the index, {slot.dtype} {_short(slot.shape)} in {shown(file)}"
        if (file, key) in self._used and _volume(sizes):
            return "is there twice"
        self._used.add((file, key))
        return ""


def _check_record(name: str, value: Value, files: _Files) -> None:
    """Raises CheckpointError for a tensor whose record cannot be true."""
    raw = value.raw
    if type(raw) is not dict or raw.keys() != _KEYS:
        value.fields(_KEYS, ())
    dtype, shape, pieces = value["dtype"].text(DTYPES), raw["shape"], raw["pieces"]
    if not is_shape(shape):
        raise value["shape"].wrong(f"is no list of at most {MAX_DIMS} sizes")
    if name.startswith("tables.") and name.endswith(".weight") and len(shape) != 2:
        raise value["shape"].wrong(f"has {len(shape)} sizes; a table has 2")
    for piece in value["pieces"].items():
        problem = _piece_problem(piece.raw, shape) or files.problem(dtype, *piece.raw[1:])
        if problem:
            raise piece.wrong(problem)
    problem = _cover_problem(shape, [piece for piece in pieces if _volume(piece[1])])
    if problem:
        raise value["pieces"].wrong(problem)


def _piece_problem(piece: Any, shape: list[int]) -> str:
    """What is wrong with a piece by itself; empty if nothing is."""
    if type(piece) is not list or len(piece) != 4 or type(piece[2]) is not str or type(piece[3]) is not str:
        return "is no list of offsets, sizes, a file and a name"
    offsets, sizes = piece[:2]
    if not is_shape(offsets) or not is_shape(sizes) or not len(offsets) == len(sizes) == len(shape):
        return f"has no {len(shape)} offsets and sizes"
    if any(start + size > whole for start, size, whole in zip(offsets, sizes, shape, strict=True)):
        return f"at {_short(offsets)}, of {_short(sizes)}, is not inside {_short(shape)}"
    return ""


def _cover_problem(shape: Sequence[int], pieces: Sequence[Any]) -> str:
    """Why pieces that are inside a tensor do not make it up, each value once; empty where they do."""
    covered, total = sum(_volume(piece[1]) for piece in pieces), _volume(shape)
    if covered < total:
        return f"have {covered:,} values of {total:,}"
    cut = [d for d, whole in enumerate(shape) if any(piece[1][d] != whole for piece in pieces)]
    if len(cut) > 2:
        return f"are cut in {len(cut)} dimensions; 2 are the most"
    # One that is not cut stands in for one that is missing.
    first, second = (cut + [d for d in range(len(shape)) if d not in cut])[:2] if len(shape) > 1 else (0, 0)
    spans = [(p[0][first], p[0][first] + p[1][first], p[0][second], p[0][second] + p[1][second]) for p in pieces if p[1]]
    if covered > total or (len(pieces) > 1 and _overlap(spans, len(shape) > 1)):
        return "overlap"
    return ""


def _overlap(spans: list[tuple[int, int, int, int]], flat: bool) -> bool:
    """Whether any two rectangles (start, stop, left, right) share a value; one pass from the first start to the last.

    Args:
        flat: they have a second side; otherwise left and right say nothing.
    """
    ends: list[tuple[int, int, int]] = []
    open_now: list[tuple[int, int]] = []
    for start, stop, left, right in sorted(spans):
        side = (left, right) if flat else (0, 1)
        while ends and ends[0][0] <= start:
            _, *gone = heappop(ends)
            del open_now[bisect_left(open_now, tuple(gone))]
        place = bisect_left(open_now, side)
        if place < len(open_now) and open_now[place][0] < side[1]:
            return True
        if place and open_now[place - 1][1] > side[0]:
            return True
        insort(open_now, side)
        heappush(ends, (stop, *side))
    return False


def _volume(sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def _short(sizes: Sequence[int]) -> str:
    return " x ".join(f"{size:,}" for size in sizes) or "a single value"
