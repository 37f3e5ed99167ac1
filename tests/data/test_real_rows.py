"""The same on real rows, where they are: every id, value and label against pandas. Nothing of them is kept here."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recpipe.data import open_dataset
from recpipe.data.config import CriteoData, TableData
from recpipe.data.prepare.job import prepare
from recpipe.errors import DataError
from tests.data.lines import silent
from tests.data.test_prepare_criteo import NAMES, arrays

HERE = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("RECPIPE_REAL_DATA") or HERE.parent / "shared" / "data")
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no real rows: set RECPIPE_REAL_DATA to their directory")


def frame(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", names=NAMES, dtype=dict.fromkeys(NAMES[14:], str))


def test_all_criteo_rows_equal_pandas(tmp_path: Path) -> None:
    train, valid = REAL / "criteo" / "train.txt.gz", REAL / "criteo" / "valid.txt.gz"
    config = CriteoData(path=str(train), valid_path=str(valid), cache_dir=str(tmp_path), rows_per_shard=50_000)
    out = prepare(config, silent)
    frames = {"train": frame(train), "valid": frame(valid)}
    found = {split: arrays(out, split) for split in frames}
    for split, rows in frames.items():
        assert (found[split]["labels"] == rows["label"]).all()
        dense = np.log(np.maximum(rows[NAMES[1:14]].fillna(0).to_numpy(float), -2) + 3).astype(np.float32)
        assert (found[split]["dense"] == dense).all()
    for number, name in enumerate(NAMES[14:]):
        counts = frames["train"][name].value_counts().rename("n").rename_axis("v").reset_index()
        kept = counts[counts.n >= 10].sort_values(["n", "v"], ascending=[False, True])["v"]
        known = pd.Series(np.arange(2, len(kept) + 2), index=kept)
        for split, rows in frames.items():
            wanted = rows[name].map(known).fillna(1).where(rows[name].notna(), 0).to_numpy(int)
            assert (found[split]["ids"][:, number] == wanted).all(), (split, name)


def test_unlabelled_kaggle_rows(tmp_path: Path) -> None:
    path = str(REAL / "criteo" / "unlabelled.txt.gz")
    with pytest.raises(DataError, match="has no labels"):
        prepare(CriteoData(path=path, cache_dir=str(tmp_path)), silent)
    config = CriteoData(path=str(REAL / "criteo" / "valid.txt.gz"), test_path=path, cache_dir=str(tmp_path))
    assert open_dataset(config, seed=0, log=silent).num_rows("test") == 2000


def test_terabyte_rows(tmp_path: Path) -> None:
    config = CriteoData(path=str(REAL / "criteo_1tb" / "day_0.gz"), cache_dir=str(tmp_path), frequency_threshold=3)
    data = open_dataset(config, seed=0, log=silent)
    assert sum(data.num_rows(split) for split in ("train", "valid", "test")) == 10_000
    assert 0.01 < float(data.batch("train", 0, 0, data.num_rows("train")).labels_B.mean()) < 0.05


def test_frappe_is_a_table_with_a_schema(tmp_path: Path) -> None:
    files = {split: REAL / "frappe_x1" / f"{split}.csv.gz" for split in ("train", "valid", "test")}
    names = list(pd.read_csv(files["train"], nrows=1).columns)
    config = TableData(
        path=str(files["train"]),
        valid_path=str(files["valid"]),
        test_path=str(files["test"]),
        categorical=names[1:],
        cache_dir=str(tmp_path),
        shuffle="none",
    )
    data = open_dataset(config, seed=0, log=silent)
    assert [data.num_rows(split) for split in files] == [202_027, 57_722, 28_860]
    batch, raw = data.batch("test", 0, 0, 28_860), pd.read_csv(files["test"])
    assert batch.labels_B.tolist() == raw["label"].tolist()
    ids = batch.ids_N.view(10, -1).numpy()
    for number, name in enumerate(names[1:]):
        pairs = pd.DataFrame({"raw": raw[name], "id": ids[number]}).query("id > 1").drop_duplicates()
        assert pairs["raw"].is_unique and pairs["id"].is_unique
