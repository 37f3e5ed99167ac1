"""What is said of settings before anything starts: unknown names, sizes, settings without effect. Cases 15 and 24."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recpipe.cli.main import main


@pytest.fixture
def runs(composed: list[Any]) -> list[Any]:
    """Configurations that got as far as a command; none is run."""
    return composed


def refused(arguments: list[str], runs: list[Any], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    assert not runs
    return capsys.readouterr().err


# For every rule: settings that make the last one idle, and settings with which it counts.
CASES = {
    "optimizer.table.eps": ("optimizer/table=sgd", "optimizer/table=adam", "1e-4"),
    "optimizer.dense.eps": ("optimizer/dense=sgd", "optimizer/dense=adam", "1e-4"),
    "lr.lr_decay_start": ("lr.lr_decay_steps=0", "lr.lr_decay_steps=9", "5"),
    "tables.replicate_below": ("tables.sharding=row_wise", "tables.sharding=auto", "50"),
    "tables.local_size": ("tables.sharding=row_wise", "tables.per_table={t_cat_0: grid}", "2"),
    "launch.max_restarts": ("launch.nproc=1", "launch.nproc=2", "2"),
    "launch.watchdog_seconds": ("launch.nproc=1", "launch.nproc=2", "30"),
    "resume_allow_grow": ("resume=''", "resume=here", "true"),
    "guard.max_skipped_in_a_row": ("guard.non_finite=stop", "guard.non_finite=skip", "3"),
    "run.overwrite": ("run.dir=''", "run.dir=here", "true"),
    "model.dcn_num_layers": ("model=dlrm", "model=dcn_v2", "2"),
    "model.dcn_low_rank_dim": ("model=dlrm", "model.interaction_type=dcn", "8"),
    "model.row_init_std": ("model.row_init=uniform", "model.row_init=normal", "0.1"),
    "data.shuffle_rows": ("data.shuffle=full", "data.shuffle=window", "100"),
    "data.mean_ids": ("data.multi_hot_features=0", "data.multi_hot_features=3", "4"),
    "data.multi_hot_features": ("data.mean_ids=1", "data.mean_ids=2", "3"),
    "data.hash_size": ("data=criteo", "data=criteo data.vocabulary=hash", "500"),
    "data.frequency_threshold": ("data=criteo data.vocabulary=hash", "data=criteo", "3"),
    "data.max_ids": ("data=criteo data.vocabulary=hash", "data=criteo", "3000"),
}


def words(settings: str) -> list[str]:
    return [settings] if "{" in settings else settings.split()


@pytest.mark.parametrize("key", CASES)
def test_setting_without_effect_is_refused(key: str, runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    idle, counts, value = CASES[key]
    error = refused(["train", *words(idle), f"{key}={value}"], runs, capsys)
    assert error.startswith(f"error: {key} has no effect here: ")
    assert main(["train", *words(counts), f"{key}={value}"]) == 0
    assert len(runs) == 1


def test_recipes_may_hold_more_than_they_need(runs: list[Any]) -> None:
    assert main(["train", "experiment=criteo_deepfm", "data.path=x", "lr.lr_decay_steps=0"]) == 0


@pytest.mark.parametrize("setting", ["epochs=2", "early_stopping.patience=1", "log.tensorboard=true"])
def test_verify_refuses_what_only_training_reads(
    setting: str, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "recpipe verify runs training steps only" in refused(["verify", setting], runs, capsys)
    assert main(["train", setting]) == 0


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("tables.sharding=rowwise", "row_wise"),
        ("tables.per_table={t_cat_0: tablewise}", "table_wise"),
        ("data.shuffle=windw", "window"),
        ("early_stopping.metric=logless", "logloss"),
        ("dtype=float16", "float64"),
    ],
)
def test_unknown_name(setting: str, right: str, runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert right in refused(["train", setting], runs, capsys)


@pytest.mark.parametrize(("exchange", "dim", "padded"), [("pooled", 18, 20), ("window", 3, 4)])
def test_padded_dim_is_offered(
    exchange: str, dim: int, padded: int, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(["train", f"exchange={exchange}", f"model.embedding_dim={dim}"], runs, capsys)
    assert f"model.embedding_dim={padded}" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["tables.pins={t_cat_99: [0]}"], "tables.pins names 't_cat_99', which is no table; did you mean t_cat_9"),
        (["data=criteo", "data.path=x", "tables.per_table={t_cat_26: row_wise}"], "which is no table; did you mean t_cat_"),
        (["data=frappe", "data.path=x", "tables.pins={t_itm: [0]}"], "which is no table; did you mean t_item"),
        (["tables.pins={t_cat_0: [2]}"], "tables.pins names rank 2, but there are 2 ranks"),
        (["tables.sharding=table_wise", "tables.pins={t_cat_0: [0,1]}"], "2 ranks, [0, 1], and table_wise takes exactly 1"),
        (["tables.sharding=replicated", "tables.pins={t_cat_0: [1]}"], "replicated takes no pins"),
        (["tables.sharding=column_wise", "tables.pins={t_cat_0: [0,0]}"], "names rank 0 twice"),
        (["tables.sharding=replicated", "tables.exchange_per_table={t_cat_0: pooled}"], "travels by no exchange"),
        (["tables.exchange_per_table={t_cat_0: poold}"], "no such exchange; did you mean pooled"),
        (["tables.sharding=table_row_wise", "tables.local_size=3"], "tables.local_size=3 does not divide the 2 ranks"),
        (["tables.per_table={t_cat_0: column_wise}", "tables.pins={t_cat_0: [0,1,2,3]}", "exchange=pooled", "launch.nproc=4",
          "model.embedding_dim=8", "model.dense_arch_layer_sizes=[8]"], "8 columns cannot be cut in 4 blocks"),
        (["batch_size=0"], "batch_size=0: must be at least 1"),
        (["schedule.embedding=none"], "only recpipe simulate can do without; write one of step, route, ahead, spread"),
        (["optimizer.dense.clip_norm=0"], "optimizer.dense.clip_norm=0.0: must be positive"),
        (["compute_dtype=bfloat16", "dtype=float64"], "16 bits go with dtype=float32"),
    ],
)  # fmt: skip
def test_what_workers_would_say_is_said_before_any_starts(
    arguments: list[str], error: str, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert error in refused(["train", *arguments], runs, capsys)


def test_a_directory_in_use_is_refused_before_any_worker_starts(
    runs: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "failures").mkdir(parents=True)
    assert main(["train", f"run.dir={folder}"]) == 0
    runs.clear()
    (folder / "config.yaml").touch()
    assert f"run.dir={folder} holds files" in refused(["train", f"run.dir={folder}"], runs, capsys)
    assert "no run of recpipe" in refused(["train", f"run.dir={folder}", "run.overwrite=true"], runs, capsys)
    assert "no run of recpipe" in refused(["verify", f"run.dir={folder}", "run.overwrite=true"], runs, capsys)
    (folder / ".recpipe-run").touch()
    assert main(["train", f"run.dir={folder}", "run.overwrite=true"]) == 0


@pytest.mark.parametrize("command", ["verify", "profile", "plan"])
def test_restarts_are_refused_where_there_are_none(
    command: str, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "launch.max_restarts has no effect here" in refused([command, "launch.max_restarts=1"], runs, capsys)


def test_group_of_another_command(runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert "exchange: no such setting" in refused(["simulate", "exchange=window"], runs, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "steps=0"], "steps=0: must be at least 1"),
        (["train", "limit_train_batches=-1"], "limit_train_batches=-1: must be at least 1; null is for all"),
        (["eval", "checkpoint=x", "limit_test_batches=0"], "limit_test_batches=0: must be at least 1"),
        (["train", "trace.steps=[5]"], "trace.steps=[5]: write [first,stop)"),
        (["train", "compute_dtype=float16"], "compute_dtype=float16: unknown"),
    ],
)
def test_numbers_that_cannot_be_meant(
    arguments: list[str], words: str, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(arguments, runs, capsys)


def test_a_schedule_that_does_not_fit_is_refused_before_any_worker_starts(
    runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(["train", "schedule=dualpipe", "mesh.stages=2", "schedule.microbatches=2"], runs, capsys)
    assert "schedule.microbatches=4 or 6 would do" in error
    assert "does not divide the 2 ranks" in refused(["verify", "mesh.stages=3"], runs, capsys)


@pytest.mark.parametrize("command", ["eval", "score"])
def test_a_missing_checkpoint_is_said_before_any_worker_starts(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("recpipe.train.launch.launch_workers", None)
    words = ["input=x", "output=y"] if command == "score" else []
    assert main([command, f"checkpoint={tmp_path / 'none'}", *words]) == 1
    assert f"{tmp_path / 'none'}: no such checkpoint" in capsys.readouterr().err
