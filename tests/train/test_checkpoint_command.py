"""recpipe checkpoint: what is in it, is it whole, rewritten, averaged, exported; exported scores are the trained ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recpipe.cli.main import main
from recpipe.comm import Groups
from recpipe.train import checkpoint
from recpipe.train.checkpoint_convert import Stored
from recpipe.train.evaluate import score_split
from recpipe.train.serving import ServedModel
from recpipe.train.setup import build_job
from recpipe.train.state import weights
from tests.ranks import run_ranks
from tests.train.jobs import small_config
from tests.train.resuming import assert_bits, run

MIXED = {"t_cat_0": "row_wise", "t_cat_1": "column_wise", "t_cat_2": "replicated"}
SETTINGS = {
    "data__mean_ids": 2.5, "data__multi_hot_features": 3, "tables__per_table": MIXED, "model__dropout": 0.3,
    "checkpoint__every_steps": 2, "checkpoint__keep_latest_k": 0,
}  # fmt: skip


def config(world: int, folder: Path, **settings: Any) -> Any:
    return small_config(world, run__dir=str(folder), data__num_train=66, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Any]:
    """A run of 2 ranks; its tensors and its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    return {**run(2, config(2, folder)), "final": folder / "checkpoints" / "final"}


def test_inspect(trained, capsys):
    assert main(["checkpoint", "inspect", str(trained["final"]), "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["epoch"], found["row"], found["world_size"]) == (5, 1, 0, 2)
    assert found["tables"]["t_cat_2"] == [60, 8] and found["table_state"] == ["sum"]
    assert main(["checkpoint", "inspect", str(trained["final"])]) == 0
    assert "t_cat_2" in capsys.readouterr().out


def test_verify_a_run(trained, tmp_path, capsys):
    assert main(["checkpoint", "verify", str(trained["folder"])]) == 0
    assert capsys.readouterr().out.count(": whole") == 3
    file = trained["final"] / "plan.json"
    text = file.read_text()
    file.write_text(text.replace("1", "2", 1))
    assert main(["checkpoint", "verify", str(trained["final"])]) == 1
    file.write_text(text)
    assert "plan.json: is damaged" in capsys.readouterr().out


def test_a_run_stands_for_its_newest_whole_checkpoint(trained, tmp_path, capsys, caplog):
    folder = Path(shutil.copytree(trained["folder"], tmp_path / "run"))
    for name in ("final", "step-4"):
        assert main(["checkpoint", "inspect", str(folder), "json=true"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["folder"] == str(folder / "checkpoints" / name)
        assert f"checkpoint: {folder / 'checkpoints' / name}" in said.err
        (folder / "checkpoints" / name / "plan.json").write_text("")
    assert "final/plan.json: is cut short" in caplog.text
    assert main(["checkpoint", "verify", str(folder)]) == 1
    shutil.rmtree(folder / "checkpoints" / "step-2")
    assert main(["checkpoint", "inspect", str(folder)]) == 1
    assert "none of its 2 checkpoints is whole" in capsys.readouterr().err


def test_synthetic_rows_are_scored_by_split(trained, tmp_path, capsys):
    words = [f"checkpoint={trained['folder']}", f"output={tmp_path / 'scores.txt'}", "launch.nproc=2"]
    assert main(["score", *words, "input=test"]) == 0
    logits, _ = run_ranks(score, 1, config(1, tmp_path), trained["final"])[0]
    torch.testing.assert_close(
        torch.tensor([float(line) for line in (tmp_path / "scores.txt").read_text().split()]).double(),
        torch.sigmoid(logits), atol=1e-6, rtol=1e-6,
    )  # fmt: skip
    assert main(["score", *words, "input=rows.csv"]) != 0
    assert "come from no file; input=test scores" in capsys.readouterr().err


def test_export_to_one_file_of_plain_tensors(trained, tmp_path, capsys):
    assert main(["checkpoint", "export", str(trained["final"]), f"out={tmp_path / 'w.safetensors'}"]) == 0
    found = load_file(tmp_path / "w.safetensors")
    chosen = [
        n for n in trained["tensors"] if n.startswith("model.") or (n.startswith("tables.") and n.endswith(".weight"))
    ]
    wanted = {name: trained["tensors"][name] for name in chosen}
    assert_bits(found, wanted)


@pytest.mark.parametrize("parts", [1, 3])
def test_convert_keeps_everything(trained, tmp_path, parts):
    out = tmp_path / "converted"
    assert main(["checkpoint", "convert", str(trained["final"]), f"out={out}", f"parts={parts}"]) == 0
    ours, theirs = Stored(out), Stored(trained["final"])
    assert_bits({n: ours.whole(n) for n in ours.index}, {n: theirs.whole(n) for n in theirs.index})
    step = trained["folder"] / "checkpoints" / "step-4"
    assert main(["checkpoint", "convert", str(step), f"out={tmp_path / 'step'}", f"parts={parts}"]) == 0
    done = run(2, config(2, tmp_path / "run", resume=str(tmp_path / "step")))
    assert_bits(done["tensors"], trained["tensors"])


def test_average(trained, tmp_path):
    steps = [trained["folder"] / "checkpoints" / name for name in ("step-2", "step-4")]
    out = tmp_path / "mean"
    assert main(["checkpoint", "average", str(trained["final"]), f"out={out}", f"inputs=[{steps[0]},{steps[1]}]"]) == 0
    mean, parts = Stored(out), [Stored(folder) for folder in (*steps, trained["final"])]
    for name in ("tables.t_cat_0.weight", "model.blocks.0.layers.0.weight"):
        name = name if name in mean.index else next(n for n in mean.index if n.startswith("model."))
        wanted = torch.stack([part.whole(name).double() for part in parts]).mean(0)
        torch.testing.assert_close(mean.whole(name).double(), wanted, atol=1e-7, rtol=1e-6)
    with pytest.raises(Exception, match="no place to go on from"):
        run(1, config(1, tmp_path / "run", resume=str(out)))


@pytest.mark.parametrize(
    "words", [["inspect"], ["look", "here"], ["export", "here"], ["average", "here", "out=x"], ["inspect", "nowhere"]]
)
def test_mistakes(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoint", *words]) in (1, 2)
    assert capsys.readouterr().err.startswith("error: ")


def score(rank: int, world: int, cfg: Any, folder: Path) -> tuple[torch.Tensor, list[Any]]:
    """Logits of the test rows by the sharded model, and the rows."""
    job = build_job(cfg, Groups.create())
    checkpoint.load(folder, weights(job.trainer), job.groups)
    rows = job.dataset.batch("test", 0, 0, job.dataset.num_rows("test"))
    return score_split(job.trainer, job.dataset, "test", job.groups, 7, None)[0], [rows]


@pytest.mark.parametrize("model", ["dlrm", "dcn_v2", "deepfm"])
def test_an_exported_model_scores_as_the_trained_one(tmp_path, model):
    cfg = config(2, tmp_path / "run", model=model)
    final = run(2, cfg)["folder"] / "checkpoints" / "final"
    logits, (rows,) = run_ranks(score, 2, cfg, final)[0]
    assert main(["checkpoint", "export", str(final), f"out={tmp_path / 'served'}"]) == 0
    served = ServedModel(tmp_path / "served")
    torch.testing.assert_close(served.logits(rows).double(), logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(served.logits(rows.rows(3, 4)).double(), logits[3:4], atol=1e-6, rtol=1e-6)
