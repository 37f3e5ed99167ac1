"""A checkpoint is whole or not there: damage is found and named, killed and failed saves are never chosen."""

from __future__ import annotations

import logging
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from recpipe.comm import Groups
from recpipe.errors import CheckpointError
from recpipe.train import checkpoint
from recpipe.train.checkpoint_manifest import checkpoints_in, find_damage, read_manifest
from recpipe.train.resume import find_source
from recpipe.train.setup import build_job
from recpipe.train.state import everything
from tests.ranks import run_ranks
from tests.train.jobs import small_config
from tests.train.resuming import assert_bits, run, whole


def config(folder: Path, world: int = 2, **settings: Any) -> Any:
    fixed = {"checkpoint__every_minutes": 0.0, "checkpoint__every_steps": 2, "checkpoint__keep_latest_k": 0}
    return small_config(world, run__dir=str(folder), data__num_train=66, **{**fixed, **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of 2 ranks and 5 steps: step-2, step-4 and final."""
    folder = tmp_path_factory.mktemp("trained")
    run(2, config(folder))
    return folder


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(data[:-1])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_of_every_file_is_found_and_named(trained, tmp_path, how):
    good = trained / "checkpoints" / "step-4"
    assert not list(find_damage(good))
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    assert len(files) == 8, files
    for name in files:
        broken = Path(shutil.copytree(good, tmp_path / str(name).replace("/", "-")))
        damage(broken / name, how)
        found = list(find_damage(broken))
        assert len(found) == 1 and str(name) in found[0], found


def source_of(rank: int, world: int, cfg: Any) -> str:
    found = find_source(cfg, Groups.create())
    return "" if found is None else found.folder.name


def test_the_next_older_whole_one_is_taken_or_offered(copied, caplog):
    damage(copied / "checkpoints" / "final" / "index.json", "flip")
    damage(copied / "checkpoints" / "step-4" / "weights" / "rank_1.safetensors", "cut")
    assert run_ranks(source_of, 2, config(copied, resume="auto")) == ["step-2"] * 2
    with pytest.raises(
        Exception, match=r"rank_1.safetensors: is cut short.*the newest whole one before it: resume=.*step-2"
    ):
        run_ranks(source_of, 2, config(copied, resume=str(copied / "checkpoints" / "step-4")))


def test_a_directory_whose_saving_was_killed_is_never_chosen(copied):
    folder = copied / "checkpoints"
    (folder / "step-4").rename(folder / ".step-4.unfinished")
    (folder / "final").rename(folder / ".final.unfinished")
    assert [path.name for path in checkpoints_in(folder)] == ["step-2"]
    done = run(2, config(copied, resume="auto"))
    assert done["step"] == 5 and names(copied) == ["final", "step-2", "step-4"]


def test_the_last_k_and_the_best_stay(tmp_path):
    run(
        2,
        config(
            tmp_path, epochs=2, checkpoint__every_steps=1, checkpoint__keep_latest_k=2, checkpoint__keep_best="logloss"
        ),
    )
    kept = names(tmp_path)
    assert [name for name in kept if name.startswith("step")] == ["step-10", "step-9"]
    assert sum(name.startswith("best") for name in kept) == 1 and "final" in kept


def test_every_epoch_and_every_minute(tmp_path):
    run(2, config(tmp_path / "a", epochs=2, checkpoint__every_steps=0, checkpoint__every_epoch=True))
    assert names(tmp_path / "a") == ["final", "step-10", "step-5"]
    run(2, config(tmp_path / "b", checkpoint__every_steps=0, checkpoint__every_minutes=1e-9))
    assert names(tmp_path / "b") == ["final", "step-2", "step-4"]


def test_writing_beside_training_keeps_the_state_of_its_step(tmp_path, trained):
    run(2, config(tmp_path, checkpoint__async_save=True))
    for name in ("step-2", "step-4", "final"):
        ours, theirs = (folder / "checkpoints" / name for folder in (tmp_path, trained))
        assert_bits(tensors_of(ours), tensors_of(theirs))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return whole([{"pieces": pieces} for pieces in run_ranks(load_pieces, 1, folder)])


def load_pieces(rank: int, world: int, folder: Path) -> list[Any]:
    job = build_job(config(folder, 1), Groups.create())
    state = everything(job.trainer)
    checkpoint.load(folder, state, job.groups)
    entries = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
    return [(name, e.shape, p.offsets, p.tensor.clone()) for name, e in entries.items() for p in e.pieces]


def test_a_full_disk_is_a_warning_and_older_checkpoints_stay(tmp_path):
    """A limit on the size of files stands for the full disk: rank 1 cannot write from step 4 on."""
    done = run(2, config(tmp_path), break_it=fill_disk)
    assert done["step"] == 5 and names(tmp_path) == ["step-2"]
    said = (tmp_path / "said").read_text()
    assert "step-4: could not be written by rank 1: [Errno 27] File too large" in said
    assert "training goes on. Checkpoints that are whole: step-2" in said


def fill_disk(loop: Any) -> None:
    content, finish = loop._content, loop.finish_saving
    logging.getLogger("recpipe").addHandler(logging.FileHandler(loop.folder / "said"))

    def limited(name: str) -> Any:
        if loop.job.groups.rank == 1 and loop.job.trainer.step >= 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        return content(name)

    def freed() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return finish()

    loop._content, loop.finish_saving = limited, freed


def test_nothing_is_unpickled(trained):
    for path in trained.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".jsonl", ".yaml", ".safetensors"), path
            assert b"pickle" not in path.read_bytes(), path


def test_no_rank_holds_a_whole_table(tmp_path):
    """4 tables of 51 MB on 4 ranks: saving and loading takes less than half of one beside the shards."""
    assert max(run_ranks(growth_of_save_and_load, 4, tmp_path)) < 25e6


def growth_of_save_and_load(rank: int, world: int, folder: Path) -> int:
    """How far the high-water mark of this process rises, in bytes."""
    cfg = small_config(
        world, data__min_ids=200_000, data__max_ids=200_000, data__num_features=4, model__embedding_dim=64,
        model__dense_arch_layer_sizes=[16, 64], tables__sharding="row_wise", optimizer__table__name="sgd",
    )  # fmt: skip
    job = build_job(cfg, Groups.create())
    state = everything(job.trainer)
    checkpoint.save(folder / "warm", {"a": torch.ones(4)}, {}, job.groups)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmHWM")
    checkpoint.save(folder / "c", state, {}, job.groups)
    checkpoint.load(folder / "c", state, job.groups)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


def test_no_manifest_no_checkpoint(tmp_path):
    (tmp_path / "weights").mkdir()
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        read_manifest(tmp_path)
