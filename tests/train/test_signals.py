"""A signal in any phase of a run: it leaves with what can be kept, and the resumed run ends like the undisturbed one."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import recpipe.train.checkpoint_saver as checkpoint_saver
from recpipe.cli.main import main
from recpipe.train import session, setup
from recpipe.train.interrupt import Interruption
from recpipe.train.trainer import Scorer
from tests.train.jobs import small_config
from tests.train.resuming import assert_bits, assert_same_lines, lines, run

SMALL = (
    "launch.nproc=1", "data.num_train=64", "data.num_valid=40", "data.num_test=41", "data.num_features=3", "data.num_dense=2",
    "data.max_ids=20", "batch_size=16", "test_batch_size=10", "model.embedding_dim=4", "model.dense_arch_layer_sizes=[8,4]",
    "log.progress=none", "log.every_steps=1", "epochs=2", "validation_freq_within_epoch=3", "early_stopping.patience=9",
    "checkpoint.every_steps=2",
)  # fmt: skip
SCORED_A_VALIDATION = 4


class Heard(Interruption):
    """Remembers the one that is entered; a thread of it hears signals."""

    entered: ClassVar[list[Interruption]] = []

    def __enter__(self) -> Interruption:
        Heard.entered[:] = [self]
        return super().__enter__()


def once(number: int, when: Callable[[], bool]) -> Callable[[], None]:
    """Raises a signal the first time that `when` says so, and waits until it is heard."""
    sent: list[int] = []

    def look() -> None:
        if not sent and when():
            sent.append(number)
            signal.raise_signal(number)
            while Heard.entered[0].number is None:
                time.sleep(0.001)

    return look


def during_scoring(monkeypatch: pytest.MonkeyPatch, number: int, batch: int) -> None:
    """Raises a signal when so many batches have been scored in the run."""
    seen: list[int] = []
    look, real = once(number, lambda: len(seen) == batch), Scorer.score

    def score(self: Scorer, batches: Any) -> Iterator[Any]:
        for result in real(self, batches):
            seen.append(0)
            look()
            yield result

    monkeypatch.setattr(Scorer, "score", score)


def during_saving(monkeypatch: pytest.MonkeyPatch, number: int, batch: int) -> None:
    """Raises a signal in the middle of the first checkpoint."""
    look, real = once(number, lambda: True), checkpoint_saver.save

    def save(*arguments: Any) -> None:
        look()
        real(*arguments)

    monkeypatch.setattr(checkpoint_saver, "save", save)


def during_reading(monkeypatch: pytest.MonkeyPatch, number: int, batch: int) -> None:
    """Raises a signal when the rows of the first step are read."""
    from recpipe.train.trainer import Trainer

    real = Trainer.run
    look = once(number, lambda: True)

    def run(self: Trainer, batches: Any) -> Any:
        look()
        return real(self, batches)

    monkeypatch.setattr(Trainer, "run", run)


def train(folder: Path, *settings: str) -> int:
    return main(["train", f"run.dir={folder}", *SMALL, *settings])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert train(folder) == 0
    return folder


@pytest.mark.parametrize(
    ("where", "hook", "batch", "number"),
    [
        ("after step 1,", during_reading, 0, signal.SIGTERM),
        ("in the validation after step 3,", during_scoring, 2, signal.SIGTERM),
        ("in the validation after step 8,", during_scoring, 3 * SCORED_A_VALIDATION + 1, signal.SIGINT),
        ("in the last test after step 8,", during_scoring, 4 * SCORED_A_VALIDATION + 2, signal.SIGTERM),
        ("in the validation after step 3,", during_saving, 0, signal.SIGINT),
    ],
    ids=["first step", "validation in an epoch", "validation at an end", "last test", "saving"],
)
def test_a_signal_in_any_phase_keeps_a_checkpoint_and_the_resumed_run_ends_the_same(
    where: str, hook: Any, batch: int, number: int, undisturbed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Case 136: early stopping, best checkpoint and metrics.jsonl are those of the run that nobody disturbed."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patched, caplog.at_level("INFO", "recpipe"):
        patched.setattr(session, "Interruption", Heard)
        hook(patched, number, batch)
        assert train(folder) == 128 + number
    assert f"stopped {where} with a checkpoint; go on with: recpipe train resume={folder}" in caplog.text
    assert not (folder / "summary.json").exists()
    assert train(folder, "resume=auto") == 0
    assert_same_lines(lines(folder), lines(undisturbed), 0.0)
    ours, theirs = (json.loads((one / "summary.json").read_text()) for one in (folder, undisturbed))
    for key in ("auc", "logloss", "test_rows", "valid", "best_step", "rows", "steps", "validations_since_best"):
        assert ours[key] == theirs[key], key


def test_two_ranks_leave_a_validation_at_the_same_batch(tmp_path: Path) -> None:
    """Case 136: only the last rank hears the signal, in the second batch of the validation."""
    settings = {"validation_freq_within_epoch": 2, "log__every_steps": 1, "data__num_valid": 80}
    calm = run(2, small_config(2, run__dir=str(tmp_path / "calm"), **settings))
    stopped = run(2, small_config(2, run__dir=str(tmp_path / "run"), **settings), None, told_in_validation)
    assert (stopped["step"], stopped["progress"].left) == (2, "valid")
    resumed = run(2, small_config(2, run__dir=str(tmp_path / "run"), resume="auto", **settings))
    assert_bits(resumed["tensors"], calm["tensors"])
    assert resumed["progress"] == calm["progress"]
    assert_same_lines(lines(tmp_path / "run"), lines(tmp_path / "calm"), 0.0)


def told_in_validation(loop: Any) -> None:
    """The last rank is told when it has scored a batch."""
    told = Interruption(speaks=False)
    loop._interruption = told
    real, groups = loop.job.trainer.score, loop.job.groups

    def score(batches: Any) -> Iterator[Any]:
        for result in real(batches):
            if groups.rank == groups.world - 1:
                told.number = signal.SIGTERM
            yield result

    loop.job.trainer.score = score


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_rows_are_opened_leaves_at_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 136: nothing is trained yet, so nothing is kept, and no trace is shown."""
    monkeypatch.setattr(setup, "prepare_dataset", lambda *_: signal.raise_signal(number))
    assert train(tmp_path / "run") == 128 + number
    assert capsys.readouterr().err.splitlines()[-1] == ("interrupted" if number == signal.SIGINT else "stopped by SIGTERM")
