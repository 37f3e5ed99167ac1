"""Storage of torch.distributed.checkpoint without pickle: a safetensors file a rank, and `index.json` instead of `.metadata`.

torch plans who writes and reads which rectangle; this file puts them on disk and finds them again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from recpipe.train.checkpoint_file import DTYPES, NAMES, Slot, TensorFile, Written, row_blocks, write_file
from recpipe.train.checkpoint_index import INDEX, read_index
from recpipe.train.checkpoint_manifest import (
    Linked,
    publish,
    unfinished_name,
    write_linked,
    write_manifest,
    write_text,
)


class Writer(StorageWriter):
    """Writes a checkpoint beside its place; the coordinator renames it when everything is on disk.

    Args:
        folder: where it shall be.
        texts: small files beside the tensors, name -> text.
        notes: facts for the manifest.
        links: files that are there already, name -> file.
    """

    def __init__(
        self, folder: Path, texts: Mapping[str, str], notes: Mapping[str, Any], links: Mapping[str, Linked]
    ) -> None:
        self._folder, self._texts, self._notes, self._links = folder, texts, notes, links
        self._unfinished = unfinished_name(folder)
        self._rank = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: one writer, one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._rank = kwargs.get("rank", 0)
        if is_coordinator:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            (self._unfinished / "weights").mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan, planner) if plan.items else [])
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        name = f"weights/rank_{self._rank}.safetensors"
        items, slots = {}, []
        for item in plan.items:
            assert item.tensor_data is not None, f"{item.index.fqn} is no tensor"
            chunk = item.tensor_data.chunk
            slot = Slot(_key(item.index), item.tensor_data.properties.dtype, tuple(chunk.sizes))
            items[slot.name] = item
            slots.append(slot)

        def blocks(slot: Slot) -> Any:
            tensor = planner.resolve_data(items[slot.name])
            assert isinstance(tensor, torch.Tensor)
            return row_blocks(tensor)

        written = write_file(self._unfinished / name, slots, blocks, {})
        return [WriteResult(items[slot.name].index, slot.num_bytes, (name, slot.name, written)) for slot in slots]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        flat = [result for one in results for result in one]
        files: dict[str, Written] = {result.storage_data[0]: result.storage_data[2] for result in flat}
        places = {result.index: result.storage_data[:2] for result in flat}
        for name, text in {INDEX: _index_text(metadata, places), **self._texts}.items():
            files[name] = write_text(self._unfinished / name, text)
        files |= write_linked(self._unfinished, self._links)
        write_manifest(self._unfinished, files, self._notes)
        publish(self._unfinished, self._folder)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class Reader(StorageReader):
    """Reads what `Writer` wrote, only the parts that this rank asks for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[MetadataIndex, tuple[str, str]] = {}
        tensors: dict[str, Any] = {}
        for name, record in read_index(folder).items():
            chunks = []
            # A piece without values may lie where another one does.
            for offsets, sizes, file, key in (piece for piece in record["pieces"] if math.prod(piece[1])):
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                self._places[MetadataIndex(name, torch.Size(offsets))] = (file, key)
            properties = TensorProperties(dtype=DTYPES[record["dtype"]])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(record["shape"]), chunks)
        self._metadata = Metadata(state_dict_metadata=tensors)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: one reader, one checkpoint."""

    def read_metadata(self) -> Metadata:
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: files are opened when they are read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files: dict[str, TensorFile] = {}
        for item in plan.items:
            file, key = self._places[item.storage_index]
            if file not in files:
                files[file] = TensorFile(self._folder / file)
            source = files[file].read(key)
            cut = tuple(slice(a, a + n) for a, n in zip(item.storage_offsets, item.lengths, strict=True))
            target = planner.resolve_tensor(item).detach()
            target.copy_(source[cut])
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _key(index: MetadataIndex) -> str:
    offsets = ",".join(map(str, index.offset or ()))
    return f"{index.fqn}@{offsets}" if offsets else index.fqn


def _index_text(metadata: Metadata, places: Mapping[MetadataIndex, tuple[str, str]]) -> str:
    out = {}
    for name, record in sorted(metadata.state_dict_metadata.items()):
        assert isinstance(record, TensorStorageMetadata), f"{name} is no tensor"
        pieces = [[list(c.offsets), list(c.sizes), *places[MetadataIndex(name, c.offsets)]] for c in record.chunks]
        out[name] = {"dtype": NAMES[record.properties.dtype], "shape": list(record.size), "pieces": pieces}
    return json.dumps(out, indent=0)
