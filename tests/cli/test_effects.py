"""A setting that changes nothing is refused when it was given by hand. Case 106: every setting has an entry."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from recpipe.cli.commands import COMMANDS, load
from recpipe.cli.effect_always import ALWAYS
from recpipe.cli.effect_commands import ACTIONS, NOT_READ
from recpipe.cli.effects import IDLE, check_effects, given_settings
from recpipe.cli.main import main
from recpipe.cli.schemas import records
from recpipe.errors import ConfigError


@pytest.fixture
def runs(composed: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations that got as far as a command; none is run."""
    for name in COMMANDS:
        if name not in ("train", "verify", "data", "doctor"):
            monkeypatch.setattr(load(name), "main", lambda cfg: composed.append(cfg) or 0)
    return composed


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings of a record."""
    for key in node:
        child = node._get_node(key)
        if OmegaConf.is_dict(child) and is_dataclass(OmegaConf.get_type(child)):
            yield from leaves(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def all_settings() -> set[str]:
    commands = [load(name) for name in COMMANDS if hasattr(load(name), "SCHEMA")]
    found = {key for command in commands for key in leaves(OmegaConf.structured(command.SCHEMA))}
    for group, by_name in records().items():
        found |= {f"{group}.{key}" for record in by_name.values() for key in leaves(OmegaConf.structured(record))}
    return found - set(records())


def test_every_setting_of_every_command_has_an_entry() -> None:
    """Case 106: a new setting goes to `effect_always`, or gets a rule that says when it has no effect."""
    entries = ALWAYS | {rule.key for rule in IDLE}
    settings = all_settings()
    assert len(settings) > 180
    missing = sorted(settings - entries)
    assert not missing, "a line in recpipe/cli/effect_always.py, or a rule in effect_rules or effect_data"
    groups = {key.rpartition(".")[0] for key in settings} | {"cost", "tables"}
    assert not {key for key in entries if key not in settings | groups}, "entries of settings that are gone"


def test_commands_name_settings_that_exist() -> None:
    known = all_settings()
    groups = {key.split(".")[0] for key in known}
    named = [key for table in (NOT_READ, ACTIONS) for by_key in table.values() for key in by_key]
    assert not {key for key in named if key not in known | groups}


# Words that make the last one idle, and what the message says. Each was accepted, without effect, before.
REFUSED = (
    ("train exchange=pooled schedule.embedding=spread", "schedule.embedding=route"),
    ("train exchange=pooled schedule.embedding=ahead", "only tables of the window exchange"),
    ("train data.num_features=2 tables.exchange_per_table={t_cat_0:pooled,t_cat_1:pooled} schedule.embedding=spread", "window"),
    ("train exchange=pooled exchange.wire_dtype=bfloat16", "only rows of the window exchange"),
    ("train tables.sharding=replicated schedule.embedding=spread", "only tables of the window exchange"),
    ("train tables.sharding=replicated exchange=pooled", "every table is replicated"),
    ("train exchange=pooled schedule.buffers=2", "only rows of the window exchange"),
    ("train launch.nproc=1 exchange.dense_wire_dtype=bfloat16", "on one rank"),
    ("train mesh.stages=2 exchange.dense_wire_dtype=bfloat16", "on one rank"),
    ("train mesh.feed=everyone", "mesh.stages=1"),
    ("train mesh.cuts=[over_1]", "mesh.stages=1"),
    ("train early_stopping.patience=3", "no validation rows", "data.num_valid=0"),
    ("train checkpoint.keep_best=auc", "no validation rows", "data.num_valid=0"),
    ("train validation_freq_within_epoch=5", "no validation rows", "data.num_valid=0"),
    ("train limit_val_batches=5", "no validation rows", "data.num_valid=0"),
    ("train limit_test_batches=5", "no test rows", "data.num_test=0"),
    ("train early_stopping.patience=3", "no validation rows", "data=criteo data.path=x data.valid_fraction=0"),
    ("train early_stopping.patience=3", "no validation rows", "data=criteo data.path=x data.test_path=y"),
    ("train early_stopping.metric=ne", "names another metric", "checkpoint.keep_best=auc"),
    ("train checkpoint.keep_latest_k=5", "no checkpoint is due", "checkpoint.every_minutes=0"),
    ("train checkpoint.async_save=true", "nothing is saved before", "checkpoint.every_minutes=0"),
    ("train schedule.chunks=3", "interleaved"),
    ("train schedule.pipelines=4", "chimera"),
    ("train schedule.beyond=double", "chimera"),
    ("train schedule.memory=4", "schedule=greedy"),
    ("train schedule.copies=1", "schedule=auto"),
    ("train schedule.try_microbatches=[2,4]", "schedule=auto"),
    ("train schedule.try_chunks=[2,4]", "schedule=auto"),
    ("train cost.forward=3", "schedule=auto, schedule=greedy"),
    ("train cost=cluster", "schedule=auto, schedule=greedy"),
    ("train cost=profiled", "cost.file with mesh.stages above 1"),
    ("train launch.timeout_seconds=60", "waits for nobody", "launch.nproc=1"),
    ("train plan=auto exchange=pooled", "plan=auto decides it"),
    ("train plan=auto mesh.cuts=[over_1]", "plan=auto decides it"),
    ("train plan=auto schedule=zbv", "plan=auto decides it"),
    ("train plan=auto schedule.embedding=spread", "plan=auto decides it"),
    ("train plan=auto tables.replicate_below=9", "plan=auto decides it"),
    ("train plan=FILE tables.sharding=row_wise", "plan=FILE decides it"),
    ("train plan=FILE tables.pins={t_cat_0:[0]}", "plan=FILE decides it"),
    ("train 'tables={local_size: 2}'", "no table is table_row_wise"),
    ("train data.num_dense=0 model=dcn_v2 model.dense_arch_layer_sizes=[8]", "no dense columns"),
    ("train data=criteo data.path=x data.split=days data.split_seed=3", "no held-out row is drawn"),
    ("train data=criteo data.path=x data.multi_hot_seed=3", "data.multi_hot_sizes=[]"),
    ("train data=criteo data.path=x data.out=here data.cache_dir=there", "data.out says"),
    ("train data=prepared data.path=here data.cache_dir=there", "a local directory"),
    ("train data=table data.path=x.parquet data.categorical=[a] data.header=false", "Parquet"),
    ("train data=table data.path=x data.categorical=[a] data.separator=x", "data.multi_valued=[]"),
    ("train data=table data.path=x data.categorical=[a] data.dense_transform=log1p", "no dense columns"),
    ("verify checkpoint.every_steps=3", "recpipe verify runs training steps only"),
    ("profile schedule=zbv", "recpipe profile goes through schedules"),
    ("profile run.dir=here", "output=FILE"),
    ("profile plan=auto", "recpipe profile goes through"),
    ("profile epochs=3", "a few training steps"),
    ("eval checkpoint=x tables.local_size=2", "no table is table_row_wise"),
    ("score checkpoint=x input=y output=z launch.nproc=1 launch.max_restarts=2", "only workers that recpipe itself starts"),
    ("simulate schedule.chunks=3", "interleaved"),
    ("simulate schedule.buffers=2", "schedule.embedding=none"),
    ("simulate cost.lookup=2", "schedule.embedding=none"),
    ("simulate schedule.embedding=route cost.early=.5", "ahead or spread"),
    ("simulate cost.near.alpha=2", "cost.ranks_per_node=0"),
    ("plan compute_dtype=bfloat16", "counts the tower in dtype"),
    ("plan exchange.wire_dtype=bfloat16", "counts rows in dtype"),
    ("plan launch.nproc=4", "the topology says"),
    ("plan planner.global_batch=4096 batch_size=4", "planner.global_batch says"),
    ("plan planner.schedules=[1f1b] planner.chunks=[3]", "planner.schedules has none"),
    ("plan workload.skew=[1.2]", "num_embeddings_per_feature"),
    ("plan workload.num_embeddings_per_feature=[9] data.num_train=9", "workload states the tables"),
    ("plan planner.plan=FILE tables.sharding=row_wise", "planner.plan=FILE says"),
    ("plan planner.plan=FILE planner.sensitivity=false planner.seconds=3", "is rated, not searched"),
    ("plan optimizer.table.learning_rate=.5", "recpipe plan runs nothing"),
    ("bench action=compare meshes=[2x1]", "recpipe bench compare does not read it, only overlap"),
    ("bench action=overlap 'contestants=[TrainPipelineBase]'", "only compare"),
    ("bench action=compare ids=[uniform] criteo=file", "ids=[real]"),
    ("checkpoint action=inspect path=x parts=3", "only convert"),
    ("checkpoint action=export path=x out=y json=true", "only inspect, verify"),
    ("data prepare source=x data.shuffle=none", "how rows are read"),
    ("data inspect x data.hash_size=9", "only prepare"),
)  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_a_setting_that_changes_nothing_is_refused(
    case: tuple[str, ...], runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 106 and its kind."""
    words, said, *before = case
    command, *rest = shlex.split(words)
    arguments = [command, *(word for one in before for word in one.split()), *rest]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert not runs and "has no effect here" in error and said in error


# The same settings where they do something.
KEPT = (
    "train schedule.embedding=spread",
    "train exchange=pooled schedule.embedding=route",
    "train exchange=pooled tables.exchange_per_table={t_cat_0:window} schedule.embedding=spread exchange.wire_dtype=bfloat16",
    "train exchange=pooled exchange.wire_dtype=null tables.pins={} mesh.cuts=[]",
    "train mesh.stages=2 mesh.feed=everyone",
    "train mesh.stages=2 schedule=chimera schedule.pipelines=2 exchange.dense_wire_dtype=bfloat16",
    "train mesh.stages=1 schedule=interleaved schedule.chunks=2 mesh.cuts=[over_0]",
    "train mesh.stages=2 schedule=greedy cost.forward=3 schedule.memory=4",
    "train cost.forward=3 trace.steps=[2,5]",
    "train plan=auto tables.sharding=row_wise exchange.wire_dtype=bfloat16",
    "train data=criteo data.path=x data.split_seed=3 early_stopping.patience=3",
    "train experiment=frappe_dlrm data.path=x data.test_path=y",
    "plan workload.num_embeddings_per_feature=[9] workload.skew=[1.2] data=synthetic",
    "profile cost=profiled cost.file=x exchange.dense_wire_dtype=bfloat16 mesh.feed=everyone",
    "simulate schedule.embedding=ahead cost.early=.5 cost.lookup=2 schedule.buffers=2 schedule.memory=9",
    "bench action=compare criteo=x 'contestants=[TrainPipelineBase]'",
)


@pytest.mark.parametrize("words", KEPT)
def test_a_setting_that_counts_is_taken(words: str, runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 0, capsys.readouterr().err
    assert len(runs) == 1


def test_the_workers_of_torchrun_are_as_many_as_they_are(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", "launch.nproc=2"]) == 0
    for key, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError, match="the 4 workers of torchrun or SLURM are used"):
        check_effects(runs[0], ["launch.nproc"], "train")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_effects(runs[0], ["launch.nproc"], "train")


def test_a_mapping_for_a_group_stands_for_its_settings() -> None:
    parse = OverridesParser.create().parse_override
    words = (
        "tables={sharding: grid, pins: {t: [0]}}",
        "optimizer/table=adam",
        "tables.pins={t: [0]}",
        "exchange=pooled",
    )
    names = given_settings([parse(word) for word in words])
    assert names == ["tables.sharding", "tables.pins", "optimizer.table.name", "tables.pins", "exchange.kind"]


def test_what_is_resumed_is_judged_by_the_settings_of_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`schedule.chunks` counts where the run that goes on has a looped schedule."""
    from recpipe.train import launch, resume

    def saved(cfg: Any, given: Any) -> Any:
        OmegaConf.update(cfg, "schedule.name", chosen[0])
        return cfg

    monkeypatch.setattr(resume, "saved_settings", saved)
    monkeypatch.setattr(launch, "launch_workers", lambda *args, **settings: 0)
    chosen = ["interleaved"]
    words = ["train", "resume=RUN", "mesh.stages=2", "schedule.chunks=2"]
    with contextlib.chdir(tmp_path):
        assert main(words) == 0, capsys.readouterr().err
        chosen[0] = "1f1b"
        assert main(words) == 2
    assert "schedule.chunks has no effect here" in capsys.readouterr().err
