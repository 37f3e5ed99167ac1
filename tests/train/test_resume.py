"""A run that stops anywhere and goes on gives what an undisturbed one gives: to the bit, or within the parity tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recpipe.train.checkpoint_convert import Stored
from tests.train.jobs import small_config
from tests.train.resuming import assert_bits, assert_close, assert_same_lines, lines, run

TWO_EPOCHS = {"epochs": 2, "checkpoint__every_minutes": 0.0, "log__every_steps": 2}


def config(folder: Path, world: int = 2, **settings: Any) -> Any:
    rows = {"data__num_train": 8 * 2 * 4 + 2}
    return small_config(world, run__dir=str(folder), **{**TWO_EPOCHS, **rows, **settings})


SAME = {
    "window": {"optimizer__table__name": "adam", "optimizer__dense__name": "adagrad", "model__dropout": 0.4},
    "pooled": {"exchange__kind": "pooled", "optimizer__table__name": "rowwise_adagrad", "tables__sharding": "row_wise"},
    "pipeline": {"mesh__stages": 2, "batch_size": 16, "schedule__name": "zb_h1", "tables__sharding": "column_wise"},
    "bags": {"data__mean_ids": 2.5, "data__multi_hot_features": 3, "schedule__microbatches": 2, "dtype": "float64"},
    "schedule": {"lr__lr_warmup_steps": 3, "lr__lr_decay_start": 5, "lr__lr_decay_steps": 4, "data__num_workers": 2},
    "spread": {"schedule__embedding": "spread", "optimizer__table__name": "adam", "tables__sharding": "row_wise"},
    "sgd": {"optimizer__table__name": "sgd", "optimizer__dense__name": "sgd", "tables__replicate_below": 20},
}


MOMENTS = [*((kind, 4) for kind in SAME), ("window", 1), ("window", 5), ("window", 7), ("pipeline", 5)]
"""Stops are heard of a step later, or in the validation behind the step: 5 is the last step of the first epoch."""


@pytest.mark.parametrize(("kind", "stop_at"), MOMENTS)
def test_same_world_and_plan_to_the_bit(tmp_path, kind, stop_at):
    settings = {**SAME[kind], "validation_freq_within_epoch": 2}
    undisturbed = run(2, config(tmp_path / "a", **settings))
    first = run(2, config(tmp_path / "b", **settings), stop_at)
    assert first["step"] in (stop_at, stop_at + 1) and not first["progress"].finished
    second = run(2, config(tmp_path / "b", **settings, resume="auto"))
    assert second["step"] == undisturbed["step"] == 10
    assert_bits(second["tensors"], undisturbed["tensors"])
    assert second["progress"] == undisturbed["progress"]
    assert lines(tmp_path / "b") == lines(tmp_path / "a")


MESHES = {"1x1": (1, 1), "2x1": (2, 1), "1x2": (2, 2), "2x2": (4, 2), "4x1": (4, 1)}
"""Replicas x stages: ranks, stages."""
MIXED = {
    f"t_cat_{i}": kind for i, kind in enumerate(["row_wise", "column_wise", "replicated", "table_wise", "row_wise"])
}
PLANS: dict[str, dict[str, Any]] = {
    **{kind: {"tables__sharding": kind} for kind in ("table_wise", "row_wise", "column_wise", "replicated")},
    "mixed": {"tables__per_table": MIXED},
}
EXACT = {"dtype": "float64", "optimizer__table__name": "rowwise_adagrad", "epochs": 1, "log__window_rows": 40}
"""The metric window is shorter than the epoch of 66 rows, and longer than what a resumed run sees of it."""


def on_mesh(folder: Path, mesh: str, plan: str, **settings: Any) -> tuple[int, Any]:
    """Ranks and configuration; the global batch is 16 rows in the run that begins."""
    world, stages = MESHES[mesh]
    begins = {} if "resume" in settings else {"batch_size": 16 * stages // world}
    return world, config(folder, world, mesh__stages=stages, **PLANS[plan], **EXACT, **begins, **settings)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict[str, Any]:
    return run(*on_mesh(tmp_path_factory.mktemp("reference"), "1x1", "table_wise"))


CHANGES = [
    ("1x1", "table_wise", "2x2", "mixed"),
    ("2x1", "row_wise", "1x1", "replicated"),
    ("2x2", "column_wise", "2x1", "table_wise"),
    ("1x2", "mixed", "4x1", "row_wise"),
    ("4x1", "replicated", "1x2", "column_wise"),
    ("2x2", "mixed", "4x1", "mixed"),
    ("4x1", "row_wise", "2x2", "replicated"),
    ("2x1", "mixed", "1x2", "row_wise"),
]


@pytest.mark.parametrize("change", CHANGES, ids="-".join)
def test_another_world_plan_or_mesh_within_the_tolerance(tmp_path, reference, change):
    mesh, plan, other_mesh, other_plan = change
    world, cfg = on_mesh(tmp_path, mesh, plan)
    assert run(world, cfg, stop_at=2 if world == 1 else 1)["step"] == 2
    world, again = on_mesh(tmp_path, other_mesh, other_plan, resume="auto", batch_size=cfg.batch_size)
    done = run(world, again)
    assert done["step"] == 5 and done["progress"].rows == 66
    assert_close(done["tensors"], reference["tensors"], 1e-12)
    assert_same_lines(lines(tmp_path), lines(reference["folder"]), 1e-12)


def test_another_exchange_within_the_tolerance(tmp_path):
    settings = {
        "optimizer__table__name": "rowwise_adagrad", "optimizer__table__eps": 1e-3, "optimizer__dense__name": "sgd",
        "epochs": 1, "data__min_ids": 10,
    }  # fmt: skip
    undisturbed = run(2, config(tmp_path / "a", **settings))
    run(2, config(tmp_path / "b", **settings), stop_at=1)
    done = run(
        2, config(tmp_path / "b", **settings, exchange__kind="pooled", tables__sharding="row_wise", resume="auto")
    )
    assert_close(done["tensors"], undisturbed["tensors"], 1e-6)


def test_a_control_a_lost_optimizer_state_is_seen(tmp_path):
    undisturbed = run(2, config(tmp_path / "a"))
    run(2, config(tmp_path / "b"), stop_at=4)

    def forget(loop: Any) -> None:
        loop.job.trainer.dense_optimizers[0].state.clear()

    done = run(2, config(tmp_path / "b", resume="auto"), break_it=forget)
    with pytest.raises(AssertionError):
        assert_bits(done["tensors"], undisturbed["tensors"])


def test_early_stopping_goes_on_where_it_was(tmp_path):
    settings = {"epochs": 30, "early_stopping__patience": 2, "optimizer__dense__learning_rate": 0.05}
    undisturbed = run(2, config(tmp_path / "a", **settings))
    run(2, config(tmp_path / "b", **settings), stop_at=undisturbed["step"] - 3)
    done = run(2, config(tmp_path / "b", **settings, resume="auto"))
    assert done["progress"] == undisturbed["progress"] and not done["progress"].resumable
    assert_bits(done["tensors"], undisturbed["tensors"])


def test_a_branch_begins_in_a_directory_of_its_own(tmp_path):
    run(2, config(tmp_path / "a"), stop_at=4)
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "a").rglob("*"))
    done = run(2, config(tmp_path / "b", resume=str(tmp_path / "a"), epochs=1))
    assert done["progress"].finished and done["folder"] == tmp_path / "b"
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "a").rglob("*")) == before


def test_auto_begins_where_nothing_is(tmp_path):
    done = run(1, config(tmp_path / "new", 1, resume="auto", epochs=1))
    again = run(1, config(tmp_path / "new", 1, resume="auto", epochs=1))
    assert done["step"] == again["step"] and done["progress"].rows == again["progress"].rows == 66
    assert_bits(done["tensors"], again["tensors"])


REFUSED = [
    ({"data__max_ids": 61}, r"feature cat_2: 60 ids in the checkpoint, 61 in the data.*resume_allow_grow"),
    ({"data__max_ids": 59, "resume_allow_grow": True}, r"feature cat_2: 60 ids in the checkpoint, 59 in the data\n"),
    ({"data__num_features": 5}, r"feature cat_5 is missing in the data"),
    ({"data__num_dense": 3}, r"dense columns: 4 in the checkpoint, 3 in the data"),
    ({"data__num_train": 70}, r"row 48 of an epoch of 66 rows; these data have 70"),
    ({"optimizer__table__name": "adam"}, r"optimizer/table=adagrad"),
    ({"optimizer__table__name": "sgd"}, r"optimizer/table=adagrad"),
    ({"optimizer__dense__name": "adagrad"}, r"optimizer/dense=adam, not adagrad"),
    ({"model__dense_arch_layer_sizes": [20, 8]}, r"does not fit this model"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run that was stopped after step 3."""
    folder = tmp_path_factory.mktemp("stopped")
    run(1, config(folder, 1, batch_size=16), stop_at=3)
    return folder


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_differences(tmp_path, stopped, settings, message):
    with pytest.raises(Exception, match=message):
        run(1, config(tmp_path, 1, resume=str(stopped), **settings))


@pytest.mark.parametrize("plan", ["row_wise", "column_wise", "replicated"])
def test_tables_may_grow_when_asked_and_keep_what_they_have(tmp_path, stopped, plan):
    """Two ranks take a run of one that has nothing left to train: old rows as they were, new ones as at a start."""
    settings = {"data__max_ids": 90, "resume_allow_grow": True, "limit_train_batches": 3, "batch_size": 8}
    before = Stored(stopped / "checkpoints" / "step-3")
    fresh = run(2, config(tmp_path / "a", **{**settings, "resume_allow_grow": False, "optimizer__table__learning_rate": 0.0}))
    done = run(2, config(tmp_path / "b", resume=str(stopped), tables__sharding=plan, epochs=1, **settings))
    assert done["step"] == 3
    for name, new in (("weight", fresh["tensors"]["tables.t_cat_2.weight"][60:]), ("sum", torch.zeros(30, 8))):
        found = done["tensors"][f"tables.t_cat_2.{name}"]
        assert torch.equal(found[:60], before.whole(f"tables.t_cat_2.{name}")) and torch.equal(found[60:], new)
