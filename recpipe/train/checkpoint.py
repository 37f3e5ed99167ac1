"""Saves and loads weights with torch.distributed.checkpoint, whatever the plan and the number of ranks.

A checkpoint is a directory: `weights/` (DCP: dense tensors and rectangles of tables under canonical names), `config.yaml`,
`schema.json`. It is written beside its place and renamed at the end: a directory that has the name is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from recpipe.comm import Groups
from recpipe.embedding.state import Entry
from recpipe.errors import CheckpointError


class ShardedEntry:
    """An `Entry` in the form that torch.distributed.checkpoint asks for (the protocol of its sharded tensors)."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def size(self) -> torch.Size:
        return torch.Size(self._entry.shape)

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self._entry.dtype)
        items = []
        for piece in self._entry.pieces:
            if piece.saved:
                chunk = ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.shape)
                data = TensorWriteData(chunk, properties, self.size())
                items.append(WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        return items

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(p.offsets), p.tensor.shape) for p in self._entry.pieces]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        for piece in self._entry.pieces:
            if index.offset is not None and tuple(index.offset) == piece.offsets:
                return piece.tensor
        raise KeyError(f"{index.fqn}: no rectangle at {index.offset} on this rank")


class _SavePlanner(DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> Any:
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, ShardedEntry) else super().lookup_object(index)


class _LoadPlanner(DefaultLoadPlanner):
    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        # The default planner replaces what is no tensor by None.
        tensors = {key: value for key, value in state_dict.items() if not isinstance(value, ShardedEntry)}
        super().set_up_planner(tensors, metadata, is_coordinator)
        self.state_dict = state_dict

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, ShardedEntry) else super().lookup_tensor(index)


# How torch.distributed.checkpoint begins its words for tensors that are not there or of another shape.
_MISFITS = ("Missing key", "Size mismatch", "Invalid checkpoint metadata")
State = Mapping[str, torch.Tensor | Entry]


def save(folder: Path, state: State, texts: Mapping[str, str], groups: Groups) -> None:
    """Writes a checkpoint; collective.

    Args:
        folder: where it shall be; must not exist.
        state: canonical name -> dense tensor (the same on all ranks) or table entry.
        texts: small files beside the weights, name -> text.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if groups.rank == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, text in texts.items():
            (unfinished / name).write_text(text)
    groups.barrier()
    dcp.save(
        _wrap(state),
        checkpoint_id=str(unfinished / "weights"),
        planner=_SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        process_group=groups.control,
    )
    if groups.rank == 0:
        unfinished.rename(folder)
    groups.barrier()


def load(folder: Path, state: State, groups: Groups) -> None:
    """Reads a checkpoint into the tensors of `state`, in place; collective.

    Raises:
        CheckpointError: the directory is no checkpoint, or holds other tensors or shapes.
    """
    check_folder(folder)
    try:
        dcp.load(
            _wrap(state),
            checkpoint_id=str(folder / "weights"),
            planner=_LoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=groups.control,
        )
    except (RuntimeError, ValueError, dcp.api.CheckpointException) as error:
        reason = _reason(error)
        if any(words in reason for words in _MISFITS):
            raise CheckpointError(f"{folder}: does not fit this model: {reason}") from error
        raise CheckpointError(f"{folder / 'weights'}: a file is damaged or cut short: {reason}") from error


def read_text(folder: Path, name: str) -> str:
    """A small file of a checkpoint."""
    check_folder(folder)
    return (folder / name).read_text()


def read_json(folder: Path, name: str) -> Any:
    return json.loads(read_text(folder, name))


def check_folder(folder: Path) -> None:
    """Raises CheckpointError where `folder` is no finished checkpoint."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint; give the directory, for example RUN/checkpoints/final")
    if not (folder / "weights").is_dir():
        inside = sorted(p.name for p in folder.glob("checkpoints/*") if p.is_dir())
        hint = f"; did you mean {folder / 'checkpoints' / inside[-1]}?" if inside else ""
        raise CheckpointError(f"{folder}: is no checkpoint (it has no weights/){hint}")


def _wrap(state: State) -> dict[str, Any]:
    return {key: ShardedEntry(value) if isinstance(value, Entry) else value for key, value in state.items()}


def _reason(error: BaseException) -> str:
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return next(iter(str(first).splitlines()), type(first).__name__)
