"""The file of tensors: read by the safetensors library, damaged files named."""

from __future__ import annotations

from pathlib import Path

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
