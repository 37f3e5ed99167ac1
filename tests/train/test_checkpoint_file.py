"""The file of tensors: read by the safetensors library, damaged files named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from recpipe.errors import CheckpointError
from recpipe.train import checkpoint_file
from recpipe.train.checkpoint_file import NAMES, Slot, TensorFile, checksum, row_blocks, write_file

TENSORS = {
    "rows": torch.arange(35, dtype=torch.float32).view(7, 5),
    "wide": torch.randn(3, 4, dtype=torch.float64),
    "half": torch.randn(5).bfloat16(),
    "step": torch.tensor(7.0),
    "none": torch.empty(0, 4),
    "ids": torch.arange(3),
    "yes": torch.tensor([True, False, True]),
    "strided": torch.arange(20.0).view(4, 5)[:, 1:3],
}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> checkpoint_file.Written:
    slots = [Slot(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    return write_file(path, slots, lambda slot: row_blocks(tensors[slot.name]), {"made": "here"})


def test_the_library_reads_what_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_file, "BLOCK_BYTES", 40)
    path = tmp_path / "a.safetensors"
    written = write(path, TENSORS)
    assert written == checksum(path)
    found, ours = load_file(path), TensorFile(path)
    assert found.keys() == ours.slots.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name], tensor), name
        assert torch.equal(ours.read(name), tensor), name


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, 2), "b": torch.zeros(1)}, tmp_path / "b")
    assert torch.equal(TensorFile(tmp_path / "b").read("a"), torch.ones(3, 2))


def test_every_number_type_has_a_name() -> None:
    assert len(NAMES) == 10


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_file_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.safetensors"
    write(path, TENSORS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"a\.safetensors: is (cut short|damaged)"):
        TensorFile(path)


def test_values_that_do_not_fill_their_place_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rows: 8 bytes of 16"):
        write_file(tmp_path / "a", [Slot("rows", torch.float32, (4,))], lambda _: [torch.ones(2)], {})


def one(**changed: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changed}}


HEADERS: list[tuple[Any, str]] = [
    (one(shape=[2, 4]), "a has 24 bytes; its type and shape take 32"),
    (one(shape=[2**62, 2**62]), "a.shape is no list of at most 16 sizes"),
    (one(shape=[0, 2**63]), "a.shape is no list of at most 16 sizes"),
    (one(shape=[-2, -3]), "a.shape is no list"),
    (one(shape=[2.0, 3]), "a.shape is no list"),
    (one(shape=None), "a.shape is no list"),
    (one(dtype="F4"), "a.dtype is F4; known: F64, F32"),
    (one(dtype=[]), "a.dtype is a list, not a text"),
    (one(data_offsets=[0]), "a.data_offsets is no list of two offsets"),
    (one(data_offsets=[24, 0]), "a.data_offsets is no list of two offsets"),
    (one(data_offsets=[-24, 0]), "a.data_offsets is no list of two offsets"),
    (one(data_offsets=[0, True]), "a.data_offsets is no list of two offsets"),
    (one(data_offsets=[8, 32]), "is cut short: 24 bytes of values of 32"),
    (one(data_offsets=[0, 10**30]), "is cut short: 24 bytes of values of 1,000"),
    (one(more=1), "a has the unknown key more"),
    ({"a": 1}, "a is an integer, not an object"),
    ([], "the content is a list, not an object"),
    ({}, "it has 24 bytes behind its tensors"),
    (one() | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}}, "its tensors overlap at byte 16"),
    ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, "its tensors leave a gap at byte 8"),
]


@pytest.mark.parametrize(("header", "reason"), HEADERS, ids=[reason for _, reason in HEADERS])
def test_a_header_that_cannot_be_true_is_damaged(tmp_path: Path, header: Any, reason: str) -> None:
    """cases 109, 126: sizes, offsets, overlap, types, and products that would overflow."""
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    with pytest.raises(CheckpointError) as told:
        TensorFile(tmp_path / "a")
    assert str(told.value).startswith(f"{tmp_path / 'a'}: is ")
    assert reason in str(told.value)


@pytest.mark.parametrize("start", [b"", b"\xff" * 8, b"\xff\xff\xff\x7f" + bytes(4), b"\x02" + bytes(7) + b"\xff{"])
def test_a_file_that_is_none_is_damaged(tmp_path: Path, start: bytes) -> None:
    """case 126"""
    (tmp_path / "a").write_bytes(start)
    with pytest.raises(CheckpointError, match=r"a: is damaged: (it is empty|its header has|byte 0 is no UTF-8)"):
        TensorFile(tmp_path / "a")
    with pytest.raises(CheckpointError, match="it is no regular file"):
        TensorFile(Path("/dev/zero"))


def test_a_tensor_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    """case 126"""
    write(tmp_path / "a", TENSORS)
    with pytest.raises(CheckpointError, match=r"a: is damaged: it has no tensor none\\x1b"):
        TensorFile(tmp_path / "a").read("none\x1b")
