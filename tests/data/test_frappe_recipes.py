"""The Frappe experiments: nothing but a schema is theirs, and they learn the real rows where these are there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from recpipe.cli.main import main

HERE = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("RECPIPE_REAL_DATA") or HERE.parent / "shared" / "data") / "frappe_x1"
NAMES = "user,item,daytime,weekday,isweekend,homework,cost,weather,country,city"
EXPERIMENTS = ["frappe_dlrm", "frappe_dcn_v2"]


def train(folder: Path, experiment: str, files: dict[str, Path], *more: str) -> dict[str, float]:
    """The summary of a run."""
    paths = [f"data.path={files['train']}", f"data.valid_path={files['valid']}", f"data.test_path={files['test']}"]
    places = [f"data.cache_dir={folder / 'cache'}", f"run.dir={folder / 'run'}"]
    quiet = ["log.progress=none", "save_checkpoint=false"]
    assert main(["train", f"experiment={experiment}", *paths, *places, *quiet, *more]) == 0
    return dict(json.loads((folder / "run" / "summary.json").read_text()))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_table_of_its_columns_trains(tmp_path: Path, experiment: str) -> None:
    """Made-up rows whose label is that of the user."""
    rng = np.random.default_rng(0)
    files = {split: tmp_path / f"{split}.csv" for split in ("train", "valid", "test")}
    for number, file in enumerate(files.values()):
        ids = rng.integers(0, 30, ((6000, 500, 500)[number], 10))
        rows = [",".join(map(str, [int(row[0] % 3 == 0), *row])) for row in ids.tolist()]
        file.write_text("\n".join([f"label,{NAMES}", *rows]) + "\n")
    summary = train(tmp_path, experiment, files, "epochs=6", "lr.lr_decay_steps=60")
    assert summary["auc"] > 0.9 and summary["test_rows"] == 500


@pytest.mark.skipif(not REAL.is_dir(), reason="no real rows: set RECPIPE_REAL_DATA to their directory")
@pytest.mark.parametrize(("experiment", "least"), [("frappe_dlrm", 0.95), ("frappe_dcn_v2", 0.945)])
def test_two_epochs_of_real_rows(tmp_path: Path, experiment: str, least: float) -> None:
    """Far from the end of the recipe, and far above a recipe that learns nothing (.5)."""
    files = {split: REAL / f"{split}.csv.gz" for split in ("train", "valid", "test")}
    summary = train(tmp_path, experiment, files, "epochs=2")
    assert least < summary["auc"] < 0.985
