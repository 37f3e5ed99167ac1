"""`index.json`: pieces that do not make up their tensor, or are not in their file, are refused when the index is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recpipe.errors import CheckpointError
from recpipe.train.checkpoint_convert import Stored
from recpipe.train.checkpoint_file import Slot, row_blocks, write_file
from recpipe.train.checkpoint_index import INDEX, _cover_problem, read_index
from recpipe.train.checkpoint_manifest import write_manifest, write_text

FILE = "weights/rank_0.safetensors"
TABLE = torch.arange(24.0).view(6, 4)
CUTS = {"a": ((0, 0), (2, 4)), "b": ((2, 0), (4, 1)), "c": ((2, 1), (4, 3)), "nothing": ((6, 0), (0, 4))}


def write_checkpoint(folder: Path, index: Any = None) -> None:
    """A table in four pieces, one of them empty, a vector in two, a scalar, an empty tensor."""
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    tensors = {
        key: TABLE[o[0] : o[0] + n[0], o[1] : o[1] + n[1]].contiguous() for key, (o, n) in CUTS.items()
    } | {"v0": torch.ones(2), "v1": torch.zeros(1), "s": torch.tensor(7), "e": torch.empty(0, 3)}
    slots = [Slot(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()]
    files = {FILE: write_file(folder / FILE, slots, lambda slot: row_blocks(tensors[slot.name]), {})}
    files[INDEX] = write_text(folder / INDEX, json.dumps(valid() if index is None else index))
    write_manifest(folder, files, {"step": 1})


def valid() -> Any:
    table = [[list(offsets), list(sizes), FILE, key] for key, (offsets, sizes) in CUTS.items()]
    return {
        "tables.t.weight": {"dtype": "F32", "shape": [6, 4], "pieces": table},
        "vector": {"dtype": "F32", "shape": [3], "pieces": [[[0], [2], FILE, "v0"], [[2], [1], FILE, "v1"]]},
        "step": {"dtype": "I64", "shape": [], "pieces": [[[], [], FILE, "s"]]},
        "empty": {"dtype": "F32", "shape": [0, 3], "pieces": [[[0, 0], [0, 3], FILE, "e"]]},
    }


def test_a_valid_index_is_read_to_the_bit(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert read_index(tmp_path) == valid()
    stored = Stored(tmp_path)
    assert torch.equal(stored.whole("tables.t.weight"), TABLE)
    assert torch.equal(stored.whole("vector"), torch.tensor([1.0, 1.0, 0.0]))


def _set(*path: Any) -> Callable[[Any], None]:
    *way, last, new = path

    def change(index: Any) -> None:
        node = index
        for key in way:
            node = node[key]
        node[last] = new

    return change


T, PIECES = "tables.t.weight", ("tables.t.weight", "pieces")
DAMAGE: list[tuple[Callable[[Any], Any], str]] = [
    (_set(T, "pieces", []), "pieces have 0 values of 24"),
    (lambda index: index[T]["pieces"].pop(0), "pieces have 16 values of 24"),
    (lambda index: index["step"]["pieces"].clear(), "step.pieces have 0 values of 1"),
    (lambda index: index["step"]["pieces"].append(index["step"]["pieces"][0]), "is there twice"),
    (lambda index: index[T]["pieces"].append(index[T]["pieces"][0]), "is there twice"),
    (_set(*PIECES, 1, 0, [1, 0]), "pieces overlap"),
    (_set(*PIECES, 1, 0, [2, 2]), "pieces overlap"),
    (_set("vector", "pieces", 1, 0, [1]), "pieces overlap"),
    (_set(*PIECES, 1, 0, [3, 0]), "is not inside 6 x 4"),
    (_set(*PIECES, 1, 0, [-2, 0]), "has no 2 offsets and sizes"),
    (_set(*PIECES, 1, 0, [2]), "has no 2 offsets and sizes"),
    (_set(*PIECES, 1, 1, [4, 1.0]), "has no 2 offsets and sizes"),
    (_set(*PIECES, 1, 1, [4, True]), "has no 2 offsets and sizes"),
    (_set(*PIECES, 1, 2, "../secret"), "which the checkpoint does not list"),
    (_set(*PIECES, 1, 2, "weights/other"), "which the checkpoint does not list"),
    (_set(*PIECES, 1, 2, INDEX), "index.json: is damaged: its header has"),
    (_set(*PIECES, 1, 3, "z"), "is not in weights/rank_0.safetensors"),
    (_set(*PIECES, 1, 3, 5), "is no list of offsets, sizes, a file and a name"),
    (_set(*PIECES, 1, 3, "a"), "has F32 4 x 1 in the index, torch.float32 2 x 4 in"),
    (_set(*PIECES, 1, None), "is no list of offsets, sizes, a file and a name"),
    (_set(T, "pieces", {}), "pieces is an object, not a list"),
    (_set(T, "dtype", "I32"), "has I32 2 x 4 in the index, torch.float32 2 x 4 in"),
    (_set(T, "dtype", "F8"), "dtype is F8; known: F64"),
    (_set(T, "dtype", 7), "dtype is an integer, not a text"),
    (_set(T, "shape", [5, 4]), "is not inside 5 x 4"),
    (_set(T, "shape", [7, 4]), "pieces have 24 values of 28"),
    (_set(T, "shape", [6, 4, 1]), "shape has 3 sizes; a table has 2"),
    (_set(T, "shape", [2**63, 2**63]), "shape is no list of at most 16 sizes"),
    (_set(T, "shape", [1] * 17), "shape is no list of at most 16 sizes"),
    (_set(T, "shape", "6 4"), "shape is no list of at most 16 sizes"),
    (_set(T, "more", 1), "has the unknown key more"),
    (lambda index: index[T].pop("pieces"), "has no pieces"),
    (_set(T, []), "is a list, not an object"),
]


@pytest.mark.parametrize(("change", "reason"), DAMAGE, ids=[reason for _, reason in DAMAGE])
def test_an_index_that_does_not_cover_its_tensors_is_damaged(
    tmp_path: Path, change: Callable[[Any], Any], reason: str
) -> None:
    """case 109: though its checksum fits; nothing uninitialised can be read."""
    index = valid()
    change(index)
    write_checkpoint(tmp_path, index)
    with pytest.raises(CheckpointError, match=r"is damaged: ") as told:
        Stored(tmp_path)
    assert reason in str(told.value)
    assert "index.json" in str(told.value)


def test_many_pieces_are_checked_in_one_pass(tmp_path: Path) -> None:
    """case 109: a grid of 200 x 150 pieces in any order; comparing each with each would take 900 million looks."""
    grid = [[[3 * i, 2 * j], [3, 2], "", ""] for i in range(200) for j in range(150)]
    shuffled = [grid[place] for place in torch.randperm(len(grid), generator=torch.Generator().manual_seed(1)).tolist()]
    assert _cover_problem([600, 300], shuffled) == ""
    moved = [*shuffled[:-1], [shuffled[0][0], [3, 2], "", ""]]
    assert _cover_problem([600, 300], moved) == "overlap"


def test_random_cuts_are_judged_as_by_counting() -> None:
    """case 109: pieces moved at random, against a count of how often each value is covered."""
    draw = torch.Generator().manual_seed(2)
    verdicts = []
    for _ in range(400):
        shape = torch.randint(1, 6, (3,), generator=draw).tolist()
        fixed = int(torch.randint(0, 3, (1,), generator=draw))
        pieces, seen = [], torch.zeros(shape, dtype=torch.int64)
        while int(seen.sum()) < seen.numel():
            offsets = [int(torch.randint(0, size, (1,), generator=draw)) for size in shape]
            offsets[fixed] = 0
            sizes = [int(torch.randint(1, n - o + 1, (1,), generator=draw)) for n, o in zip(shape, offsets, strict=True)]
            sizes[fixed] = shape[fixed]
            if int(seen.sum()) + torch.Size(sizes).numel() > seen.numel():
                sizes = [1 if d != fixed else shape[d] for d in range(3)]
            if int(seen.sum()) + torch.Size(sizes).numel() > seen.numel():
                break
            seen[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))] += 1
            pieces.append([offsets, sizes, "", ""])
        verdict = _cover_problem(shape, pieces)
        assert (verdict == "") == bool((seen == 1).all()), (shape, pieces, verdict)
        verdicts.append(verdict)
    assert "" in verdicts
    assert "overlap" in verdicts
