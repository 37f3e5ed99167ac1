"""A run that is resumed when it has ended says that it has, and what would make it go on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recpipe.cli.main import main

SMALL = (
    "launch.nproc=1", "data.num_train=64", "data.num_valid=40", "data.num_test=41", "data.num_features=3", "data.num_dense=2",
    "data.max_ids=20", "batch_size=16", "model.embedding_dim=4", "model.dense_arch_layer_sizes=[8,4]", "log.progress=none",
)  # fmt: skip


@pytest.fixture
def train(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """Runs `recpipe train` in one directory; gives what it said."""

    def run(*settings: str) -> str:
        caplog.clear()
        with caplog.at_level("INFO", "recpipe"):
            assert main(["train", f"run.dir={tmp_path / 'run'}", *SMALL, *settings]) == 0
        return "\n".join(record.getMessage() for record in caplog.records)

    return run


def files(folder: Any) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_done_again(train, tmp_path):
    train()
    before = files(tmp_path)
    said = train("resume=auto")
    assert f"{tmp_path / 'run'} is complete: 4 steps, 1 epochs, 64 rows; nothing is left to train\ntest: auc " in said
    assert "\nbest validation, at step 4: auc " in said
    assert "\nto train on: epochs=2\n" in said
    assert said.endswith(f"recpipe eval checkpoint={tmp_path / 'run' / 'checkpoints' / 'final'}")
    assert files(tmp_path) == before
    assert "resuming from" in train("resume=auto", "epochs=2")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 8


def test_a_run_killed_after_its_last_checkpoint_is_not_complete(train, tmp_path):
    train()
    (tmp_path / "run" / "summary.json").unlink()
    assert "resuming from" in train("resume=auto")
    assert (tmp_path / "run" / "summary.json").exists()


def test_early_stopping_ends_a_run_until_there_is_more_patience(train):
    # Nothing is learnt, so no validation is better than the first.
    still = (
        "optimizer.table.learning_rate=0",
        "optimizer.dense.learning_rate=0",
        "epochs=5",
        "checkpoint.every_epoch=true",
    )
    train("early_stopping.patience=2", *still)
    said = train("early_stopping.patience=2", "resume=auto", *still)
    assert "is complete: 12 steps, 3 epochs, 192 rows" in said
    assert "to train on: early_stopping.patience above 2; it ended after 2 validations without a better one" in said
    assert "resuming from" in train("early_stopping.patience=3", "resume=auto", *still)
