"""A user's own recipes, models and data sets: YAML files in a directory given by --config-dir."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recpipe.cli.main import main


def write(group: str, name: str, text: str) -> None:
    folder = Path("mine") / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)


def test_recipe(composed: list[Any]) -> None:
    write("experiment", "small", "# @package _global_\nbatch_size: 77\n")
    assert main(["train", "--config-dir", "mine", "experiment=small"]) == 0
    assert composed[0].batch_size == 77


def test_model_gets_the_settings_of_its_kind(composed: list[Any]) -> None:
    write("model", "wide", "name: dlrm\nover_arch_layer_sizes: [512, 1]\n")
    assert main(["train", "--config-dir=mine", "model=wide", "model.over_arch_layer_sizes=[8,1]"]) == 0
    assert composed[0].model.over_arch_layer_sizes == [8, 1]
    assert composed[0].model.interaction_type == "original"


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        (
            "experiment",
            "# @package _global_\nbatch_sze: 7\n",
            "mine.yaml: batch_sze: no such setting; did you mean batch_size",
        ),
        (
            "experiment",
            "# @package _global_\nbatch_size: x\n",
            "experiment/mine.yaml: batch_size: 'x' is not an integer",
        ),
        ("experiment", "# @package _global_\nmodel: {nope: 1}\n", "model.nope"),
        ("model", "name: dlmr\n", "model.name=dlmr: a model file names its kind; did you mean dlrm?"),
        ("model", "embedding_dim: 8\n", "a model file names its kind"),
        ("model", "name: dlrm\nembeding_dim: 8\n", "embeding_dim"),
        ("data", "name: synthetic\nnum_train: many\n", "'many' is not an integer"),
    ],
)
def test_mistakes_are_named(
    group: str, text: str, message: str, composed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(group, "mine", text)
    assert main(["train", "--config-dir", "mine", f"{group}=mine"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not composed


def test_unknown_choice_knows_own_files(composed: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    write("experiment", "small", "# @package _global_\nbatch_size: 77\n")
    assert main(["train", "--config-dir", "mine", "experiment=smal"]) == 2
    assert "did you mean small?" in capsys.readouterr().err


def test_directory_that_is_not_there(composed: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config-dir", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
