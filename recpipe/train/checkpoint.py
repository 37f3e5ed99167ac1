"""Saves and loads a run with torch.distributed.checkpoint, whatever the plan and the number of ranks. No pickle.

A checkpoint is a directory: `weights/` (a safetensors file a rank: dense tensors and rectangles of tables), `index.json`
(where each tensor lies), small texts (configuration, schema, plan, progress) and `manifest.json` (checksums).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from recpipe.comm import Groups
from recpipe.embedding.state import Entry
from recpipe.errors import CheckpointError
from recpipe.train.checkpoint_manifest import MANIFEST, Linked, find_damage, newest_whole
from recpipe.train.checkpoint_manifest import read_text as read_text
from recpipe.train.checkpoint_manifest import read_value as read_value
from recpipe.train.checkpoint_storage import Reader, Writer

logger = logging.getLogger(__name__)


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


class SaveError(CheckpointError):
    """A checkpoint could not be written; all ranks know it, and training can go on."""


def save(
    folder: Path,
    state: State,
    texts: Mapping[str, str],
    groups: Groups,
    notes: Mapping[str, Any] | None = None,
    links: Mapping[str, Linked] | None = None,
) -> None:
    """Writes a checkpoint; collective over `groups.control`.

    Args:
        folder: where it shall be; an older one there is replaced when the new one is whole.
        state: canonical name -> dense tensor (a rank gives those it holds; copies are written once) or table entry.
        texts: small files beside the tensors, name -> text; those of rank 0 are written.
        notes: facts for the manifest, such as the step.
        links: files that are there already, name -> file; those of rank 0 are linked.

    Raises:
        SaveError: on every rank, where one could not write (a full disk).
    """
    try:
        dcp.save(
            _wrap(state),
            storage_writer=Writer(folder, texts, notes or {}, links or {}),
            planner=_SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=groups.control,
        )
    except CheckpointException as error:
        rank, (cause, _) = next(iter(sorted(error.failures.items())))
        raise SaveError(f"{folder}: could not be written by rank {rank}: {_reason(cause)}") from error


def load(folder: Path, state: State, groups: Groups) -> None:
    """Checks a checkpoint and reads it into the tensors of `state`, in place; collective over `groups.control`.

    Raises:
        CheckpointError: the directory is no checkpoint, is damaged, or holds other tensors or shapes.
    """
    problems = damage(folder, groups)
    if problems:
        raise CheckpointError(problems[0])
    try:
        dcp.load(
            _wrap(state),
            storage_reader=Reader(folder),
            planner=_LoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=groups.control,
        )
    except CheckpointException as error:
        reason = _reason(next(iter(error.failures.values()))[0])
        if any(words in reason for words in _MISFITS):
            raise CheckpointError(f"{folder}: does not fit this model: {reason}") from error
        raise CheckpointError(f"{folder}: cannot be read: {reason}") from error


def choose(named: Path, groups: Groups) -> Path:
    """The checkpoint that a user means by a directory: itself, or the newest whole one of a run. Collective.

    Raises:
        CheckpointError: it is neither.
    """
    if (named / MANIFEST).is_file():
        return named
    found = problem = ""
    if groups.rank == 0:
        try:
            found = str(newest_whole(named))
            logger.info("checkpoint: %s", found)
        except CheckpointError as error:
            problem = str(error)
    found, problem = groups.broadcast_text(found), groups.broadcast_text(problem)
    if problem:
        raise CheckpointError(problem)
    return Path(found)


def damage(folder: Path, groups: Groups) -> list[str]:
    """What is wrong with the files of a checkpoint; the same on every rank, each of which reads a part. Collective."""
    found = groups.gather_texts(list(find_damage(folder, groups.rank, groups.world)))
    return list(dict.fromkeys(text for texts in found for text in texts))


def _wrap(state: State) -> dict[str, Any]:
    return {key: ShardedEntry(value) if isinstance(value, Entry) else value for key, value in state.items()}


def _reason(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
