"""The command of the README on a part of the real Criteo rows, where they are there."""

from __future__ import annotations

import gzip
import json
import os
from itertools import islice
from pathlib import Path

import pytest

from recpipe.cli.main import main

FOLDER = Path(os.environ.get("RECPIPE_REAL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "criteo"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="real rows may not be distributed; RECPIPE_REAL_DATA names their folder")
@pytest.mark.parametrize("model", ["dlrm", "dcn_v2", "deepfm"])
def test_a_part_of_the_real_rows_trains(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("train", 40_000), ("valid", 6_000)):
        with gzip.open(FOLDER / f"{name}.txt.gz", "rt") as source, Path(f"{name}.txt").open("w") as part:
            part.writelines(islice(source, lines))
    code = main(
        ["train", f"experiment=criteo_{model}", "data.path=train.txt", "data.valid_path=valid.txt", "run.dir=run",
         "epochs=2", "log.progress=none", "launch.nproc=2"]
    )  # fmt: skip
    summary = json.loads(Path("run/summary.json").read_text())
    assert code == 0
    # Above .80 would mean a leak; .70 is what a quarter of the rows gives at least.
    assert 0.70 < summary["auc"] < 0.80
    assert summary["rows"] in (40_000, 80_000)
    assert summary["world_size"] == 2
