"""The small texts of a checkpoint, as a stranger may have written them: configuration, progress, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recpipe.data.config import CriteoData, SyntheticData
from recpipe.errors import CheckpointError
from recpipe.model.config import DlrmConfig
from recpipe.specs import Feature, Schema
from recpipe.train.config import TrainConfig
from recpipe.train.config_text import from_yaml, to_yaml
from recpipe.train.progress import Progress
from recpipe.train.state import schema_from, schema_json
from recpipe.train.taken import take_places, take_settings
from recpipe.untrusted import Source

SOURCE = Source("progress.json", CheckpointError, non_finite=True)


def settings(**changed: Any) -> Any:
    data = OmegaConf.structured(SyntheticData(name="synthetic"))
    base = {"data": data, "model": OmegaConf.structured(DlrmConfig(name="dlrm"))}
    return OmegaConf.merge(OmegaConf.structured(TrainConfig), base, changed)


def test_a_configuration_comes_back_as_it_was() -> None:
    cfg = settings(tables={"per_table": {"t_cat_0": "row_wise"}, "pins": {"t_cat_0": [0, 1]}}, seed=3, batch_size=7)
    assert OmegaConf.to_container(from_yaml(to_yaml(cfg))) == OmegaConf.to_container(cfg)
    assert from_yaml("seed: 5\n").batch_size == TrainConfig().batch_size


def test_an_interpolation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """case 123: a checkpoint holds values; nothing of the machine it is read on comes into them."""
    monkeypatch.setenv("SECRET", "told")
    text = to_yaml(settings())
    for place, value in (
        ("run:\n  dir: ''", "run:\n  dir: ${oc.env:SECRET}"),
        ("plan: ''", "plan: /x/${seed}"),
        ("cuts: []", "cuts:\n  - a${now:%Y}"),
        ("plan: ''", "plan: ???"),
        ("per_table: {}", "per_table:\n    ${oc.env:SECRET}: row_wise"),
    ):
        assert place in text
        with pytest.raises(CheckpointError, match=r"is damaged: .*a checkpoint holds values") as told:
            from_yaml(text.replace(place, value))
        assert "told" not in str(told.value)


BOMB = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n" + "".join(
    f"c{n}: &c{n} [*{'b' if n == 0 else f'c{n - 1}'}" + ",*b" * 7 + "]\n" for n in range(20)
)
TEXTS = [
    (BOMB, "line 1 has an alias or a tag"),
    ("seed: !!python/object/apply:os.system ['true']\n", "line 1 has an alias or a tag"),
    ("seed: !!int '3'\n", "line 1 has an alias or a tag"),
    ("a: " + "[" * 200 + "]" * 200, "it is nested deeper than 32 levels"),
    ("a: " + "[" * 10**6, "is damaged: "),
    ("{" * 20 + "}" * 20, "is damaged"),
    ("seed: 1\n---\nseed: 2\n", "it has several documents"),
    ("seed: 1\nseed: 2\n", "is damaged: "),
    ("- 1\n", "it is no list of settings"),
    ("7\n", "it is no list of settings"),
    ("", "seed"),
    ("seed: [\n", "is damaged: "),
    ("seed: \x01\n", "is damaged: "),
    ("seed: x\n", "is damaged: seed: Value 'x'"),
    ("seed: 1.5\n", "is damaged: seed: Value"),
    ("newer: 1\n", "it has the unknown setting newer (a newer version may have written it)"),
    ("launch:\n  newer: 1\n", "it has the unknown setting launch.newer"),
    ("launch: 3\n", "is damaged: "),
    ("launch:\n  nproc: 5000\n", "launch.nproc=5000: must be at most 4,096"),
    ("lr:\n  lr_warmup_steps: -1\n", "lr.lr_warmup_steps=-1: must be at least 0"),
    ("seed: .nan\n", "is damaged: "),
    ("optimizer:\n  dense:\n    learning_rate: .nan\n", "must be a number, not NaN"),
    ("mesh:\n  feed: nobody\n", "mesh.feed=nobody: unknown"),
    ("data:\n  name: other\n", "data.name is other; "),
    ("data: 5\n", "data is no list of settings"),
    ("data:\n  name: synthetic\n  newer: 1\n", "it has the unknown setting data.newer"),
    ("model:\n  name: dlrm\n  embedding_dim: wide\n", "model.embedding_dim: Value 'wide'"),
    ("model:\n  name: dlrm\n  embedding_dim: 1000000000\n", "model.embedding_dim=1000000000: must be at most"),
    ("? [a, b]\n: 1\n", "is damaged"),
    ("1: 2\n", "it is no list of settings"),
    ("x" * (3 << 20), "it has 3,145,728 characters"),
]


@pytest.mark.parametrize(("text", "reason"), [one for one in TEXTS if one[0]], ids=[r for t, r in TEXTS if t])
def test_a_configuration_that_is_none_is_damaged(text: str, reason: str) -> None:
    """cases 123, 126"""
    with pytest.raises(CheckpointError, match=r"config\.yaml: is damaged: ") as told:
        from_yaml(text)
    assert reason in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_a_checkpoint_does_not_choose_places_beyond_this_machine() -> None:
    """case 123"""
    cfg = settings()
    cfg.data = OmegaConf.structured(CriteoData(path="s3://bucket/train.txt", cache_dir="/etc/x", out="/etc/y"))
    for given in ([], ["data.path_of_other"], ["launch"]):
        with pytest.raises(CheckpointError, match=r"data\.path=s3://bucket/train\.txt; a place beyond this machine"):
            take_places(cfg, given, Path("c"))
    take_places(cfg, ["data.path"], Path("c"))
    assert (cfg.data.cache_dir, cfg.data.out) == (".cache/recpipe", "")
    cfg.data.cache_dir = "/mine"
    take_places(cfg, ["data"], Path("c"))
    assert cfg.data.cache_dir == "/mine"


def test_a_checkpoint_does_not_start_any_number_of_processes(caplog: pytest.LogCaptureFixture) -> None:
    """case 123: what it decides beyond the model is said in one line."""
    cfg = settings(launch={"nproc": 4000})
    with pytest.raises(CheckpointError, match=r"launch\.nproc=4,000, on this machine at most \d+; give launch\.nproc"):
        take_settings(cfg, [], Path("c"))
    take_settings(cfg, ["launch.nproc"], Path("c"))
    cfg.launch.nproc, cfg.plan = 4, "a\x1b]0;b"
    caplog.set_level("INFO")
    take_settings(cfg, [], Path("c"))
    assert caplog.messages[-1] == "from the checkpoint: plan=a\\x1b]0;b, launch.nproc=4, launch.threads=1"


def saved_progress(**changed: Any) -> str:
    return json.dumps({**Progress(epoch=1, row=2, bad_ids={"cat_0": 3}).to_json(), **changed})


def test_progress_comes_back_as_it_was() -> None:
    before = Progress(epoch=1, row=2, bad_ids={"cat_0": 3}, resumable=False)
    before.best.report = {"auc": float("nan"), "rows": 5, "ne": None}
    after = Progress.from_json(SOURCE.parsed(json.dumps(before.to_json())))
    assert str(after) == str(before)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"epoch": "1"}, "epoch is a text, not an integer"),
        ({"row": -1}, "row is -1, not in 0 to"),
        ({"row": 2**70}, "row is 1,180,591,620,717,411,303,424, not in"),
        ({"validated": -2}, "validated is -2, not in -1"),
        ({"finished": 1}, "finished is an integer, not true or false"),
        ({"bad_ids": {"a": None}}, "bad_ids.a is null, not an integer"),
        ({"bad_ids": []}, "bad_ids is a list, not an object"),
        ({"best": 1}, "best is an integer, not an object"),
        ({"best": {"value": "x"}}, "best.value is a text, not a number"),
        ({"best": {"report": {"auc": 10**400}}}, "best.report.auc is an integer of 1,329 bits, too large"),
        ({"best": {"report": {"auc": []}}}, "best.report.auc is a list, not a number"),
        ({"newer": 1}, "has the unknown key newer (a newer version"),
    ],
)
def test_progress_of_other_types_is_damaged(changed: dict[str, Any], reason: str) -> None:
    """case 126"""
    with pytest.raises(CheckpointError, match=r"progress\.json: is damaged: ") as told:
        Progress.from_json(SOURCE.parsed(saved_progress(**changed)))
    assert reason in str(told.value)


def test_a_schema_of_other_types_is_damaged() -> None:
    """case 126"""
    schema = Schema(2, (Feature("a", 3, 1.5, True), Feature("b", 4, 2.5, False, (0, 1), "mean")))
    assert schema_from(SOURCE.parsed(schema_json(schema))) == schema
    one = {"name": "a", "num_ids": 3}
    for saved, reason in (
        ({"num_dense": 2, "features": [one, one]}, "features have a name twice"),
        ({"num_dense": True, "features": []}, "num_dense is true or false"),
        ({"num_dense": 2, "features": [{**one, "mean_ids": "x"}]}, r"features\[0\].mean_ids is a text"),
        ({"num_dense": 2, "features": [{"name": "a"}]}, r"features\[0\] has no num_ids"),
        ({"num_dense": 2, "features": {}}, "features is an object"),
        ({"features": []}, "the content has no num_dense"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            schema_from(SOURCE.parsed(json.dumps(saved)))
