"""The command as a user runs it, small: every figure is there and fits the others."""

from __future__ import annotations

import json

import pytest

from recpipe.bench.links import open_network
from recpipe.bench.ranks import Ranks
from recpipe.bench.settings import Workload, parse_contestant
from recpipe.cli.main import main
from recpipe.errors import TrainingError

SMALL = ["ids=[skewed]", "rows=200", "dim=8", "batch_size=32", "blocks=2", "steps=2", "warmup=1", "links=[none]"]


def test_compare_has_both_sides(tmp_path, capsys):
    contestants = ["TrainPipelineSparseDist", "window:2x1:m1:ahead"]
    assert main(["bench", "compare", *SMALL, f"contestants={json.dumps(contestants)}", f"out={tmp_path}"]) == 0
    torchrec, ours = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert [torchrec["contestant"], ours["contestant"]] == contestants
    assert torchrec["ratio"] == 1.0
    assert ours["ratio"] == pytest.approx(torchrec["ms"] / ours["ms"])
    for row in (torchrec, ours):
        assert len(row["blocks_ms"]) == 2 and row["min_ms"] <= row["ms"] <= row["max_ms"]
        assert row["rows_per_second"] == pytest.approx(64 / (row["ms"] / 1000))
        assert row["limit_ms"] >= row["gemm_ms"] > 0 and row["table_ms"] > 0 and row["peak_bytes"] > 1e8
    assert set(ours["counted_bytes"]) == {"ids", "rows", "row_gradients", "dense"} and not torchrec["counted_bytes"]
    shown = capsys.readouterr().out
    assert "TorchRec TrainPipelineSparseDist" in shown and "recpipe window:2x1:m1:ahead" in shown


def test_overlap_has_every_figure(tmp_path):
    assert (
        main(["bench", "overlap", *SMALL, "meshes=[1x2]", "microbatches=[2]", "blocks=1", "steps=3", f"out={tmp_path}"])
        == 0
    )
    (row,) = json.loads((tmp_path / "overlap.json").read_text())["rows"]
    assert (row["mesh"], row["microbatches"]) == ("1x2", 2)
    assert all(row[key] > 0 for key in ("raw", "alone", "network", "step", "bytes", "counted"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench"], "recpipe bench needs an action"),
        (["bench", "compre"], "did you mean compare"),
        (["bench", "compare", "links=[fast]"], "for instance 1gbit"),
        (["bench", "compare", "ids=[real]"], "needs criteo=FILE"),
        (["bench", "overlap", "meshes=[2x2]"], "multiply to the 2 ranks"),
    ],
)
def test_wrong_settings_are_said_before_anything_runs(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_rank_that_dies_says_why():
    workload = Workload("dlrm", "skewed", "", ranks=2, batch_size=8, rows=50, dim=8, num_batches=2)
    contestant = parse_contestant("window:2x1:m1:ahead:optimizer.dense.name=nothing", 2)
    with (
        pytest.raises(TrainingError, match=r"(?s)has died.*optimizer.dense.name=nothing"),
        open_network("none", 2) as network,
        Ranks(contestant, workload, network),
    ):
        pass
