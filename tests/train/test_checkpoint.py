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
from recpipe.embedding.state import Entry
from recpipe.errors import CheckpointError, ConfigError
from recpipe.train import checkpoint, run_dir
from recpipe.train.checkpoint_manifest import checkpoints_in, find_damage, read_manifest
from recpipe.train.resume import find_source, saved_settings
from recpipe.train.run_dir import hold, make_run_dir
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


HOW = ("first", "middle", "last", "cut", "grow", "empty", "remove")
"""A bit of the first, middle or last byte; one byte less or more; no byte; no file."""


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "remove":
        path.unlink()
    elif how in ("cut", "grow", "empty"):
        path.write_bytes({"cut": data[:-1], "grow": data + b" ", "empty": b""}[how])
    else:
        data[{"first": 0, "middle": len(data) // 2, "last": -1}[how]] ^= 0x20
        path.write_bytes(data)


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


ALONE = Groups(0, 1)


@pytest.mark.parametrize("how", HOW)
def test_damage_of_every_file_is_named_and_the_next_older_one_offered_and_taken(copied, how, caplog):
    folder = copied / "checkpoints"
    shutil.rmtree(folder / "final")
    files = files_of(folder / "step-4")
    assert len(files) == 8 and not list(find_damage(folder / "step-4"))
    named, auto = (config(copied, 1, resume=resume) for resume in (str(folder / "step-4"), "auto"))
    for name in files:
        path = folder / "step-4" / name
        data = path.read_bytes()
        damage(path, how)
        found = list(find_damage(folder / "step-4"))
        assert len(found) == 1 and name.name in found[0], found
        with pytest.raises(CheckpointError, match=rf"{name.name}.*step-2"):
            find_source(named, ALONE)
        caplog.clear()
        assert find_source(auto, ALONE).folder.name == "step-2"
        assert name.name in caplog.text
        path.write_bytes(data)
    assert find_source(auto, ALONE).folder.name == "step-4"


@pytest.mark.parametrize("bit", [0x01, 0x20, 0x80])
def test_every_byte_of_the_manifest_counts(copied, bit):
    path = copied / "checkpoints" / "step-4" / "manifest.json"
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"manifest\.json: is damaged"):
            read_manifest(path.parent)


def test_a_file_that_is_not_listed_is_never_read(trained, copied):
    folder = copied / "checkpoints" / "step-4"
    (folder / "weights" / "rank_2.safetensors").write_bytes(b"not one of ours")
    assert not list(find_damage(folder))
    assert_bits(tensors_of(folder), tensors_of(trained / "checkpoints" / "step-4"))


def source_of(rank: int, world: int, cfg: Any) -> str:
    found = find_source(cfg, Groups.create())
    return "" if found is None else found.folder.name


def test_ranks_agree_on_the_damage_and_what_to_take(copied):
    """Each rank reads a part of the files; all know what one has found."""
    damage(copied / "checkpoints" / "final" / "index.json", "middle")
    damage(copied / "checkpoints" / "step-4" / "weights" / "rank_1.safetensors", "cut")
    assert run_ranks(source_of, 2, config(copied, resume="auto")) == ["step-2"] * 2
    with pytest.raises(
        Exception, match=r"rank_1.safetensors: is cut short.*the newest whole one before it: resume=.*step-2"
    ):
        run_ranks(source_of, 2, config(copied, resume=str(copied / "checkpoints" / "step-4")))


def test_settings_to_resume_with_come_from_a_checked_file(copied):
    folder = copied / "checkpoints" / "step-4"
    damage(folder / "config.yaml", "middle")
    with pytest.raises(CheckpointError, match=r"config\.yaml: is damaged.*step-2"):
        saved_settings(config(copied, resume=str(folder)), [])
    damage(copied / "checkpoints" / "final" / "config.yaml", "empty")
    assert saved_settings(config(copied, resume=str(copied)), []).checkpoint.every_steps == 2


def test_a_directory_whose_saving_was_killed_is_never_chosen(copied):
    folder = copied / "checkpoints"
    (folder / "step-4").rename(folder / ".step-4.unfinished")
    (folder / "final").rename(folder / ".final.unfinished")
    assert [path.name for path in checkpoints_in(folder)] == ["step-2"]
    done = run(2, config(copied, resume="auto"))
    assert done["step"] == 5 and names(copied) == ["final", "step-2", "step-4"]


@pytest.mark.parametrize("other", [".final.unfinished", None])
def test_a_kill_between_the_old_and_the_new_of_a_name_loses_neither(copied, other):
    folder = copied / "checkpoints"
    shutil.copytree(folder / "final", folder / other) if other else None
    (folder / "final").rename(folder / ".final.old")
    for name in ("step-2", "step-4"):
        shutil.rmtree(folder / name)
    assert find_source(config(copied, 1, resume="auto"), ALONE).folder.name == "final"
    assert names(copied) == ([".final.old", "final"] if other else ["final"])


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


def test_a_damaged_one_does_not_count_as_one_of_the_last_k(copied):
    folder = copied / "checkpoints"
    shutil.rmtree(folder / "final")
    (folder / "step-4").rename(folder / "step-9")
    damage(folder / "step-9" / "index.json", "cut")
    run(2, config(copied, resume="auto", checkpoint__every_steps=0, checkpoint__keep_latest_k=1), stop_at=2)
    assert names(copied) == [".step-9.damaged", "step-4"] and not list(find_damage(folder / "step-4"))


def test_the_best_is_a_place_to_go_on_from(tmp_path):
    settings = {"epochs": 2, "checkpoint__keep_best": "logloss", "checkpoint__every_steps": 0}
    undisturbed = run(2, config(tmp_path / "a", **settings))
    best = next((tmp_path / "a" / "checkpoints").glob("best-*"))
    done = run(2, config(tmp_path / "b", **settings, resume=str(best)))
    assert done["step"] == undisturbed["step"] == 10
    assert_bits(done["tensors"], undisturbed["tensors"])


def test_two_runs_do_not_train_in_one_directory(copied, monkeypatch):
    monkeypatch.setattr(run_dir, "PATIENCE_SECONDS", 0.2)
    cfg = config(copied, 1, resume="auto")
    with hold(copied, 0), pytest.raises(ConfigError, match="another run is under way there"):
        make_run_dir(cfg, "train", ALONE, 4)
    assert make_run_dir(cfg, "train", ALONE, 4) == copied


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
        if path.is_file() and path.stat().st_size:
            assert path.suffix in (".json", ".jsonl", ".yaml", ".safetensors"), path
            assert b"pickle" not in path.read_bytes(), path


def test_no_rank_holds_a_whole_table(tmp_path):
    """4 tables of 51 MB on 4 ranks: saving and loading takes less than half of one beside the shards."""
    assert max(run_ranks(growth_of_save_and_load, 4, tmp_path, False)) < 25e6


def test_a_control_a_whole_table_on_one_rank_is_seen(tmp_path):
    assert max(run_ranks(growth_of_save_and_load, 4, tmp_path, True)) > 50e6


def growth_of_save_and_load(rank: int, world: int, folder: Path, gather: bool) -> int:
    """How far the high-water mark of this process rises, in bytes.

    Args:
        gather: rank 0 holds one whole table while the state is handed over.
    """
    cfg = small_config(
        world, data__min_ids=200_000, data__max_ids=200_000, data__num_features=4, model__embedding_dim=64,
        model__dense_arch_layer_sizes=[16, 64], tables__sharding="row_wise", optimizer__table__name="sgd",
    )  # fmt: skip
    job = build_job(cfg, Groups.create())
    state = everything(job.trainer)
    checkpoint.save(folder / "warm", {"a": torch.ones(4)}, {}, job.groups)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmHWM")
    if gather and rank == 0:
        table = next(value for value in state.values() if isinstance(value, Entry))
        torch.ones(table.shape, dtype=table.dtype)
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
