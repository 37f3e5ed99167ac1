"""A run goes on with the rows of another day: known values keep their rows, new ones come behind them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from recpipe.cli.main import main
from recpipe.comm import Groups
from recpipe.train.checkpoint_convert import Stored
from recpipe.train.config_text import from_yaml
from recpipe.train.encoded import encoding_in
from recpipe.train.new_rows import continued, opening
from recpipe.train.resume import find_source, restore
from recpipe.train.setup import build_job
from tests.ranks import run_ranks
from tests.train.days import day, train, write
from tests.train.resuming import pieces, whole


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first day; `day2.csv` has other cities too, in another order of frequency."""
    folder = tmp_path_factory.mktemp("days")
    write(folder / "day1.csv", day(range(16), 700, 1))
    write(folder / "day2.csv", day(range(6, 24), 500, 2))
    train(folder, "checkpoint.every_steps=8", "checkpoint.keep_latest_k=0")
    return folder


@pytest.fixture
def run(first: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(first / "run", tmp_path / "run"))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What the command itself says, and nothing of torch."""
    caplog.set_level("INFO")


def ids(checkpoint: Path, feature: int) -> dict[int, int]:
    """The id of every key."""
    encoding = encoding_in(checkpoint)
    assert encoding is not None
    keys, values = encoding.vocabulary(feature)
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def test_a_new_day_adds_ids_behind_the_known_ones(first: Path, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cases 113 and 146: nothing but the path is given; ids stay, the day is trained whole, one line says what is new."""
    before, old = ids(run / "checkpoints/final", 0), Stored(run / "checkpoints/final")
    summary = json.loads((run / "summary.json").read_text())
    words = [f"resume={run}", f"data.path={first}/day2.csv", f"data.cache_dir={first}/cache2", "launch.nproc=1"]
    assert main(["train", *words, "optimizer.table.learning_rate=0", "optimizer.dense.learning_rate=0"]) == 0
    after, new = ids(run / "checkpoints/final", 0), Stored(run / "checkpoints/final")
    assert before.items() <= after.items() and sorted(after.values()) == list(range(2, 2 + len(after)))
    assert "8 new ids behind 23 known ones (city +8)" in caplog.text and "begin at row 0, after step" in caplog.text
    for name in ("tables.t_city.weight", "tables.t_kind.weight", "tables.t_city.sum"):
        rows = old.slot(name).shape[0]
        assert torch.equal(new.rows(name, 0, rows), old.whole(name)) or name.endswith("sum")
    assert new.slot("tables.t_city.weight").shape[0] == old.slot("tables.t_city.weight").shape[0] + 8
    now = json.loads((run / "summary.json").read_text())
    assert now["epochs"] == 1 and now["rows"] > summary["rows"] + 350 and now["steps"] > summary["steps"]


def test_dense_columns_keep_the_transforms_of_the_first_day(first: Path, run: Path) -> None:
    """Case 113: mean and deviation are those that the weights were trained with."""
    rows = [{**row, "price": row["price"] * 100} for row in day(range(16), 300, 4)]
    file = write(first / "dear.csv", rows)
    assert main(["train", f"resume={run}", f"data.path={file}", f"data.cache_dir={first}/cache3"]) == 0
    old, new = (encoding_in(one / "checkpoints/final") for one in (first / "run", run))
    assert old is not None and new is not None
    kept = ("transform", "mean", "deviation", "missing_as")
    assert [[d.get(k) for k in kept] for d in old.manifest["dense"]] == [
        [d.get(k) for k in kept] for d in new.manifest["dense"]
    ]
    assert new.manifest["dense"][0]["max"] > 100


def test_a_new_day_may_begin_in_the_middle_of_an_epoch(first: Path, run: Path, tmp_path: Path) -> None:
    """Case 113: from any checkpoint, into another run."""
    words = [f"resume={run}/checkpoints/step-8", f"data.path={first}/day2.csv", f"data.cache_dir={first}/cache2"]
    assert main(["train", *words, f"run.dir={tmp_path}/branch"]) == 0
    assert json.loads((tmp_path / "branch/summary.json").read_text())["steps"] > 8 + 10


def test_a_file_that_changed_under_a_run_is_refused_inside_an_epoch(
    first: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Case 112: the place of the run is not found in other rows; at the end of an epoch it goes on, and says so."""
    file = first / "day1.csv"
    kept = file.read_bytes()
    words = ["launch.nproc=1", f"data.cache_dir={tmp_path}/cache"]
    try:
        write(file, day(range(16), 700, 5))
        assert main(["train", f"resume={run}/checkpoints/step-8", f"run.dir={tmp_path}/more", *words]) == 1
        assert "other training rows than data.path=" in capsys.readouterr().err
        assert main(["train", f"resume={run}", "epochs=2", *words]) == 0
        assert "training rows are other ones than those of the checkpoint" in caplog.text
    finally:
        file.write_bytes(kept)


def test_the_same_rows_in_another_place_are_no_new_day(first: Path, run: Path, tmp_path: Path) -> None:
    """To the bit what an undisturbed run has, though the file has another name and its cache is gone."""
    file = shutil.copyfile(first / "day1.csv", tmp_path / "moved.csv")
    words = [f"resume={run}/checkpoints/step-8", f"data.path={file}", f"data.cache_dir={tmp_path}/cache"]
    assert main(["train", *words, f"run.dir={tmp_path}/again"]) == 0
    ours, theirs = (Stored(one / "checkpoints/final") for one in (tmp_path / "again", first / "run"))
    for name in theirs.index:
        if not name.startswith("run."):
            assert torch.equal(ours.whole(name), theirs.whole(name)), name


def test_a_run_goes_on_without_its_training_file(first: Path, run: Path, tmp_path: Path) -> None:
    """Its prepared rows are enough."""
    (first / "day1.csv").rename(first / "gone.csv")
    try:
        assert main(["train", f"resume={run}/checkpoints/step-8", f"run.dir={tmp_path}/again"]) == 0
    finally:
        (first / "gone.csv").rename(first / "day1.csv")


@pytest.mark.parametrize(
    ("word", "said"),
    [("data.dense_transform=none", "data.dense_transform is"), ("data.categorical=[city]", "data.categorical is")],
)
def test_a_setting_that_would_encode_otherwise_is_refused(
    first: Path, run: Path, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    """Case 113: the weights were trained on other numbers."""
    assert main(["train", f"resume={run}", f"data.path={first}/day2.csv", word, "launch.nproc=1"]) == 1
    assert said in capsys.readouterr().err


def test_hashed_values_need_no_growth(first: Path, tmp_path: Path) -> None:
    """A hash knows every value: tables keep their size."""
    for name in ("day1.csv", "day2.csv"):
        shutil.copyfile(first / name, tmp_path / name)
    final = train(tmp_path, "data.vocabulary=hash", "data.hash_size=50")
    before = Stored(final).slot("tables.t_city.weight").shape
    assert main(["train", f"resume={tmp_path}/run", f"data.path={tmp_path}/day2.csv", "launch.nproc=1"]) == 0
    assert Stored(final).slot("tables.t_city.weight").shape == before


def test_bags_made_by_the_size_of_a_table_do_not_grow(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another size every bag of data.multi_hot_sizes would hold other ids."""
    for name in ("day1.csv", "day2.csv"):
        shutil.copyfile(first / name, tmp_path / name)
    train(tmp_path, "data.multi_hot_sizes=[3,1]")
    assert main(["train", f"resume={tmp_path}/run", f"data.path={tmp_path}/day2.csv", "launch.nproc=1"]) == 1
    assert "all bags would change" in capsys.readouterr().err


def restored(rank: int, world: int, cfg: Any) -> dict[str, Any]:
    """This rank's part of everything, as a new day begins with it."""
    groups = Groups.create()
    source = find_source(cfg, groups)
    job = build_job(cfg, groups, opening(source))
    source = continued(source, cfg, job.dataset, groups)
    assert source is not None and source.progress.row == 0
    restore(job.trainer, {}, source, groups)
    return {"pieces": pieces(job)}


def test_known_rows_and_their_state_stay_under_any_plan(first: Path) -> None:
    """Case 113: tables that grow and are cut in other ways keep every known row and its state; new state is that of a start."""
    checkpoint = first / "run/checkpoints/final"
    cfg = from_yaml((checkpoint / "config.yaml").read_text(), checkpoint)
    changes = {
        "resume": str(checkpoint), "data.path": f"{first}/day2.csv", "data.cache_dir": f"{first}/cache2",
        "tables.per_table": {"t_city": "row_wise", "t_kind": "column_wise"}, "launch.nproc": 2, "run.dir": "",
    }  # fmt: skip
    for key, value in changes.items():
        OmegaConf.update(cfg, key, value, merge=False)
    new, old = whole(run_ranks(restored, 2, cfg)), Stored(checkpoint)
    for name in (one for one in old.index if one.startswith("tables.")):
        known = old.whole(name)
        assert torch.equal(new[name][: len(known)], known), name
        if not name.endswith(".weight"):
            assert not new[name][len(known) :].any()
    assert len(new["tables.t_city.weight"]) > old.slot("tables.t_city.weight").shape[0]
    assert np.isfinite(new["tables.t_city.weight"].numpy()).all()
