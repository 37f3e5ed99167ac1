"""Reads and rewrites checkpoints in one process, a block of rows at a time: conversion, averaging, one file for elsewhere."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from recpipe.data.encoding import differences
from recpipe.errors import CheckpointError
from recpipe.escapes import shown
from recpipe.train.checkpoint_file import DTYPES, NAMES, Slot, TensorFile, row_ranges, write_file
from recpipe.train.checkpoint_index import INDEX, read_index
from recpipe.train.checkpoint_manifest import (
    find_damage,
    publish,
    read_manifest,
    read_text,
    read_value,
    unfinished_name,
    write_linked,
    write_manifest,
    write_text,
)
from recpipe.train.encoded import Kept, encoding_files, encoding_in

TEXTS = ("config.yaml", "schema.json", "plan.json", "progress.json")
Rows = Callable[[str, int, int], torch.Tensor]


class Stored:
    """The tensors of a checkpoint by name, whatever rectangles they lie in.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """

    def __init__(self, folder: Path) -> None:
        problem = next(find_damage(folder), None)
        if problem is not None:
            raise CheckpointError(problem)
        self.folder, self.index = folder, read_index(folder)
        self._files: dict[str, TensorFile] = {}

    def slot(self, name: str) -> Slot:
        """Type and shape of a tensor. Raises CheckpointError where the checkpoint has none of that name."""
        if name not in self.index:
            raise CheckpointError(f"{self.folder}: has no tensor {shown(name)}")
        record = self.index[name]
        return Slot(name, DTYPES[record["dtype"]], tuple(record["shape"]))

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a tensor; all of one without dimensions."""
        slot = self.slot(name)
        if not slot.shape:
            return self._piece(self.index[name]["pieces"][0])
        out = torch.empty(stop - start, *slot.shape[1:], dtype=slot.dtype)
        for piece in self.index[name]["pieces"]:
            offsets, sizes = piece[:2]
            first, last = max(start, offsets[0]), min(stop, offsets[0] + sizes[0])
            if first < last:
                columns = tuple(slice(o, o + n) for o, n in zip(offsets[1:], sizes[1:], strict=True))
                part = self._piece(piece)[first - offsets[0] : last - offsets[0]]
                out[(slice(first - start, last - start), *columns)] = part
        return out

    def whole(self, name: str) -> torch.Tensor:
        """A whole tensor."""
        shape = self.slot(name).shape
        return self.rows(name, 0, shape[0] if shape else 1)

    def _piece(self, piece: Sequence[Any]) -> torch.Tensor:
        file, key = piece[2:]
        if file not in self._files:
            self._files[file] = TensorFile(self.folder / file)
        return self._files[file].read(key)


def summary(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, for people and programs; reads no tensor."""
    manifest, index = read_manifest(folder), read_index(folder)
    sizes = {name: math.prod(r["shape"]) * DTYPES[r["dtype"]].itemsize for name, r in index.items()}
    tables = {name.split(".")[1]: index[name]["shape"] for name in index if _is_rows(name)}
    dense = [name for name in index if name.startswith("model.")]
    return {
        "folder": str(folder),
        **{key: manifest.get(key) for key in ("step", "epoch", "row", "world_size", "metrics")},
        "bytes": sum(sizes.values()),
        "dense_weights": sum(math.prod(index[name]["shape"]) for name in dense),
        "tables": tables,
        "table_state": sorted({name.rpartition(".")[2] for name in index if name.startswith("tables.")} - {"weight"}),
        "files": {name: size for name, (size, _) in manifest["files"].items()},
        "versions": {name: one.text() for name, one in read_value(folder, "progress.json")["versions"].fields().items()},
    }


def convert(folder: Path, out: Path, parts: int) -> None:
    """Rewrites a checkpoint as `parts` files, each with a block of rows of every tensor: one a rank that will read it."""
    stored = Stored(folder)
    slots = [stored.slot(name) for name in stored.index]
    _write(out, _texts(folder), _notes(folder), slots, stored.rows, parts, encoding_files(folder))


def average(folders: Sequence[Path], out: Path) -> None:
    """The mean of the weights of several checkpoints; everything else is the last one's. For scoring, not for going on.

    Raises:
        CheckpointError: they hold other tensors.
    """
    all_stored = [Stored(folder) for folder in folders]
    last = all_stored[-1]
    slots = [last.slot(name) for name in last.index]
    for stored in all_stored:
        if {name: stored.slot(name) for name in _weights(stored)} != {name: last.slot(name) for name in _weights(last)}:
            raise CheckpointError(f"{stored.folder} and {last.folder} hold different weights; there is no mean of them")
        _check_encodings(stored.folder, last.folder)
    mean_of = set(_weights(last))

    def rows(name: str, start: int, stop: int) -> torch.Tensor:
        if name not in mean_of or not last.slot(name).dtype.is_floating_point:
            return last.rows(name, start, stop)
        total = sum(stored.rows(name, start, stop).double() for stored in all_stored)
        assert isinstance(total, torch.Tensor)
        return (total / len(all_stored)).to(last.slot(name).dtype)

    texts = _texts(last.folder)
    saved = read_value(last.folder, "progress.json")
    saved["progress"].fields()
    saved.raw["progress"]["resumable"] = False
    texts["progress.json"] = json.dumps(saved.raw, indent=1)
    notes = {**_notes(last.folder), "mean_of": [str(folder) for folder in folders]}
    _write(out, texts, notes, slots, rows, 1, encoding_files(last.folder))


def _check_encodings(folder: Path, other: Path) -> None:
    """Rows of the same number have to stand for the same value. Raises CheckpointError."""
    ours, theirs = encoding_in(folder), encoding_in(other)
    found = differences(ours, theirs) if ours and theirs else [] if ours is theirs else ["one has no encoding"]
    if found:
        raise CheckpointError(f"{folder} and {other} encode rows in different ways; there is no mean of them: {found[0]}")


def export(folder: Path, out: Path) -> list[str]:
    """All weights as whole tensors in one safetensors file; gives their names."""
    stored = Stored(folder)
    names = _weights(stored)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.unfinished")
    notes = {key: str(value) for key, value in _notes(folder).items() if key in ("step", "epoch")}
    write_file(partial, [stored.slot(name) for name in names], lambda slot: blocks(slot, stored.rows), notes)
    partial.replace(out)
    return names


def _weights(stored: Stored) -> list[str]:
    return [name for name in stored.index if name.startswith("model.") or _is_rows(name)]


def _is_rows(name: str) -> bool:
    return name.startswith("tables.") and name.endswith(".weight")


def _texts(folder: Path) -> dict[str, str]:
    return {name: read_text(folder, name) for name in TEXTS}


def _notes(folder: Path) -> dict[str, Any]:
    return {key: value for key, value in read_manifest(folder).items() if key not in ("files", "format")}


def _bounds(slot: Slot, part: int, parts: int) -> tuple[int, int]:
    """Rows of a part; a tensor without rows lies in the first one."""
    if not slot.shape:
        return (0, 1) if part == 0 else (0, 0)
    return slot.shape[0] * part // parts, slot.shape[0] * (part + 1) // parts


def blocks(slot: Slot, rows: Rows, part: int = 0, parts: int = 1) -> Iterable[torch.Tensor]:
    """The values of a part of a tensor, in blocks of rows."""
    start, stop = _bounds(slot, part, parts)
    if not slot.shape:
        return iter([rows(slot.name, 0, 1)])
    ranges: Iterator[slice] = row_ranges((stop - start, *slot.shape[1:]), slot.dtype.itemsize)
    return (rows(slot.name, start + r.start, start + r.stop) for r in ranges)


def _write(
    out: Path, texts: dict[str, str], notes: dict[str, Any], slots: Sequence[Slot], rows: Rows, parts: int, more: Kept
) -> None:
    if out.exists():
        raise CheckpointError(f"{out}: is there already; give another name")
    unfinished = unfinished_name(out)
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "weights").mkdir(parents=True)
    index: dict[str, Any] = {s.name: {"dtype": NAMES[s.dtype], "shape": list(s.shape), "pieces": []} for s in slots}
    files = {}
    for part in range(parts):
        name, kept = f"weights/part_{part}.safetensors", []
        for slot in slots:
            start, stop = _bounds(slot, part, parts)
            # An empty tensor has no rows in any part, and still a place.
            if start == stop and not (part == 0 and slot.shape and slot.shape[0] == 0):
                continue
            sizes = [stop - start, *slot.shape[1:]] if slot.shape else []
            index[slot.name]["pieces"].append(
                [[start, *(0 for _ in slot.shape[1:])][: len(sizes)], sizes, name, slot.name]
            )
            kept.append(Slot(slot.name, slot.dtype, tuple(sizes)))
        files[name] = write_file(unfinished / name, kept, _values(slots, rows, part, parts), {})
    for name, text in {INDEX: json.dumps(index, indent=0), **texts, **more.texts}.items():
        files[name] = write_text(unfinished / name, text)
    files |= write_linked(unfinished, more.links)
    write_manifest(unfinished, files, notes)
    publish(unfinished, out)


def _values(slots: Sequence[Slot], rows: Rows, part: int, parts: int) -> Callable[[Slot], Iterable[torch.Tensor]]:
    whole = {slot.name: slot for slot in slots}
    return lambda slot: blocks(whole[slot.name], rows, part, parts)
