"""Settings on the command line: schemas, the nearest names, the right quoting, words without '='. Cases 34 and 35."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

import recpipe.cli.train
from recpipe.cli.arguments import text_value, to_overrides, unbalanced
from recpipe.cli.conf import find_conf, groups, options
from recpipe.cli.main import main
from recpipe.errors import ConfigError

COMMANDS = ("train", "eval", "verify", "simulate")


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err + shown.out
    assert shown.err.startswith("error: ")
    return shown.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batch_sise=4", "batch_sise: no such setting; did you mean batch_size or"),
        ("launch.nprc=2", "launch.nprc: no such setting; did you mean launch.nproc"),
        ("model.dropuot=0.1", "model.dropuot: no such setting; did you mean model.dropout"),
        ("dropout=0.1", "dropout: no such setting; did you mean model.dropout?"),
        ("modl=dlrm", "modl: no such setting; did you mean model"),
        ("+batch_sise=4", "batch_sise: no such setting; did you mean batch_size"),
        ("+batch_size=4", "+batch_size: this setting exists; leave the + out"),
        ("~seed", "~seed: this setting cannot be removed"),
        ("~model", "~model: a group cannot be removed"),
        ("optimizer=adam", "optimizer: not a group by itself; choose optimizer/table=... or optimizer/dense=..."),
        ("data.path=x", "data.path: not a setting of data=synthetic; data=criteo, "),
    ],
)
def test_unknown_setting(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["train", setting], capsys).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model=dlmr", "model=dlmr: there is no such model; did you mean dlrm?"),
        ("data=critoe", "data=critoe: there is no such data; did you mean criteo?"),
        ("optimizer/table=admm", "optimizer/table=admm: there is no such optimizer/table; did you mean adam?"),
        ("+experiment=nowhere", "experiment=nowhere: there is no such experiment"),
        ("model=[dlrm,dcn_v2]", "model=[dlrm,dcn_v2]: choose one"),
    ],
)
def test_unknown_choice(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["train", setting], capsys).startswith(message)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("batch_size=abc", "'abc' is not an integer"),
        ("launch.nproc=2.5", "'2.5' is not an integer"),
        ("model.dropout=much", "'much' is not a number"),
        ("save_checkpoint=maybe", "'maybe' is neither true nor false"),
        ("seed=null", "null is not allowed"),
        ("launch=3", "has settings of its own below it; set these"),
        ("tables.pins=5", "has to be a mapping, as '{name: value}'"),
        ("model.over_arch_layer_sizes=[8,b]", "'b' is not an integer"),
        ("tables.pins={t: [0,b]}", "'b' is not an integer"),
    ],
)
def test_wrong_type(setting: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["train", setting], capsys) == f"{setting}: {reason}"


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["tables.pins={t: [0,", "1]}"], "'tables.pins={t: [0, 1]}'"),
        (["model.over_arch_layer_sizes=[8,", "1]"], "'model.over_arch_layer_sizes=[8, 1]'"),
        (["tables.pins=t:[0", "tables.pins=1]"], "'tables.pins={t:[0,1]}'"),
        (["tables.per_table=a:grid", "tables.per_table=b:grid"], "'tables.per_table={a:grid,b:grid}'"),
        (["run.dir=/data/day=3"], "'run.dir=\"/data/day=3\"'"),
        (["run.dir=out[1]"], "'run.dir=\"out[1]\"'"),
        (["run.dir=out[1"], "'run.dir=\"out[1\"'"),
        (["run.dir=runs(2)"], "'run.dir=\"runs(2)\"'"),
        (["run.dir=#3"], "'run.dir=\"#3\"'"),
        (["run.dir=a,b"], "'run.dir=\"a,b\"'"),
        (["seed", "=", "3"], "without spaces around '='"),
        (["seed"], "Write key=value"),
    ],
)
def test_the_right_quoting_is_shown(words: list[str], right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert right in error_of(["train", *words], capsys)


@pytest.mark.parametrize("value", ["/data/day=3", "out[1]", "runs(2)", "#3", "a,b", 'say "no"', "it's", "a\\", ""])
def test_quoted_text_arrives(value: str, composed: list[Any]) -> None:
    assert main(["train", f"run.dir={text_value(value)}"]) == 0
    assert composed[0].run.dir == value


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20))
def test_any_text_can_be_quoted(value: str) -> None:
    override = OverridesParser.create().parse_override(f"key={text_value(value)}")
    assert override.value() == value


def test_mappings_take_any_name(composed: list[Any]) -> None:
    # Prepared data have their own names.
    data = ["data=prepared", "data.path=x"]
    assert main(["train", *data, "tables.per_table={a: grid, b: row_wise}", "tables.pins.a=[0,1]"]) == 0
    assert dict(composed[0].tables.per_table) == {"a": "grid", "b": "row_wise"}
    assert list(composed[0].tables.pins.a) == [0, 1]


def test_composing_leaves_no_file(composed: list[Any], tmp_path: Path) -> None:
    """Case 33: ranks make no directories of their own; rank 0 makes the run's."""
    assert main(["train", "seed=3", "model=dcn_v2"]) == 0
    assert composed[0].seed == 3
    assert composed[0].model.name == "dcn_v2"
    assert os.listdir(tmp_path) == []


def test_multirun(composed: list[Any]) -> None:
    assert main(["train", "--multirun", "seed=1,2", "model=dlrm,deepfm"]) == 0
    assert [(cfg.seed, cfg.model.name) for cfg in composed] == [(1, "dlrm"), (1, "deepfm"), (2, "dlrm"), (2, "deepfm")]


def test_multirun_gives_the_largest_exit_code(composed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recpipe.cli.train, "main", lambda cfg: int(cfg.seed))
    assert main(["train", "--multirun", "seed=1,3,0"]) == 3


def test_multirun_of_all_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--multirun", "schedule=glob(*)", "schedule.microbatches=8"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("1f1b", "gpipe", "zb_h1"))


def test_required_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["eval"], capsys) == "checkpoint must be given, as checkpoint=..."


def test_value_from_the_environment(capsys: pytest.CaptureFixture[str], composed: list[Any]) -> None:
    assert "'NOWHERE_SET' not found" in error_of(["train", "run.dir=${oc.env:NOWHERE_SET}"], capsys)


def test_unknown_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["train", "--multirn", "seed=1,2"], capsys).startswith(
        "--multirn: no such flag; did you mean --multirun"
    )
    assert "invalid choice: 'jb'" in error_of(["train", "--cfg", "jb"], capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_cfg(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"recpipe {command}: ")
    assert "recpipe_" not in shown
    assert main([command, "--cfg", "job"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] in shown


def every_choice() -> list[tuple[str, str, str]]:
    folder = find_conf()
    # Those of verify are the same files as those of train.
    grouped = [(command, group) for command in ("train", "eval", "simulate") for group in groups(folder, command)]
    return [(command, group, option) for command, group in grouped for option in options(folder, group)]


@pytest.mark.parametrize(("command", "group", "option"), every_choice())
def test_every_choice_composes(command: str, group: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, f"{group}={option}", "--cfg", "job"]) == 0, capsys.readouterr().err


@dataclass
class WithWords:
    """Settings of a command that takes words."""

    action: str = ""
    path: str = ""
    rows: int = 0


def test_words_without_keys() -> None:
    assert to_overrides(["inspect", "/x y/[1]", "rows=3"], WithWords) == [
        'action="inspect"',
        'path="/x y/[1]"',
        "rows=3",
    ]
    with pytest.raises(ConfigError, match="third: not a setting"):
        to_overrides(["inspect", "dir", "third"], WithWords)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("[a,b]", False),
        ("[a", True),
        ("a]", True),
        ("{a:[0,1]}", False),
        ("[(])", True),
        ('"["', False),
        ("'a]'", False),
    ],
)
def test_unbalanced(value: str, answer: bool) -> None:
    assert unbalanced(value) is answer
