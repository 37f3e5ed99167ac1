"""`recpipe data`: words and short names on the command line, output for people and as JSON, exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest

from recpipe.cli.data import as_overrides
from recpipe.cli.main import main
from recpipe.data import open_dataset
from recpipe.data.config import PreparedData
from recpipe.errors import ConfigError
from tests.data.lines import criteo_lines, silent, write_lines


def test_words_flags_and_short_names() -> None:
    assert as_overrides(["inspect", "a b", "--json"]) == ["action='inspect'", "path='a b'", "json=true"]
    assert as_overrides(["prepare", "source=x", "out=y", "data.threads=1"]) == [
        "action='prepare'",
        "data.path=x",
        "data.out=y",
        "data.threads=1",
    ]
    with pytest.raises(ConfigError, match="not inspect a b"):
        as_overrides(["inspect", "a", "b"])


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    source = write_lines(tmp_path / "train.txt.gz", criteo_lines(400))
    arguments = ["data", "prepare", f"source={source}", f"out={tmp_path / 'out'}", "data.frequency_threshold=2"]
    assert main([*arguments, "data.rows_per_shard=150"]) == 0
    return tmp_path / "out"


def test_prepare_inspect_verify(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(prepared)]) == 0
    text = capsys.readouterr().out
    assert "400 read, 0 in quarantine" in text and "cat_25" in text and "ln(max(x, -2) + 3)" in text
    assert main(["data", "inspect", str(prepared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 400
    assert main(["data", "verify", str(prepared)]) == 0
    (prepared / "train-00001.dense.npy").unlink()
    assert main(["data", "verify", str(prepared)]) == 1
    assert "train-00001.dense.npy is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs an action; known: prepare, inspect"),
        (["inspct", "x"], "did you mean inspect"),
        (["inspect"], "needs a directory"),
        (["prepare", "file"], "write source=file"),
        (["prepare", "data=synthetic"], "not data=synthetic"),
        (["inspect", "/nowhere"], "is not a prepared directory"),
        (["prepare", "source=/nowhere/train.txt"], "does not exist"),
        (["export", "x"], "needs npy_dir=DIR"),
    ],
)
def test_what_is_wrong_is_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_export_and_import_give_the_same_rows(prepared: Path, tmp_path: Path) -> None:
    days, back = tmp_path / "days", tmp_path / "back"
    assert main(["data", "export", str(prepared), f"npy_dir={days}"]) == 0
    assert np.load(days / "day_0_sparse_contig_freq.npy").dtype == np.int32
    assert np.load(days / "day_0_labels.npy").shape == (150, 1)
    assert main(["data", "import", str(back), f"npy_dir={days}"]) == 0
    assert main(["data", "verify", str(back)]) == 0
    one, two = (open_dataset(PreparedData(path=str(p)), seed=3, log=silent) for p in (prepared, back))
    assert one.schema == two.schema
    for split in ("train", "valid", "test"):
        rows = one.num_rows(split)
        a, b = (data.batch(split, 1, 0, rows) for data in (one, two))
        assert a.ids_N.tolist() == b.ids_N.tolist() and a.labels_B.tolist() == b.labels_B.tolist()


def test_days_of_other_trainers_cut_the_last_day_in_halves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day, rows in enumerate((30, 11)):
        np.save(tmp_path / f"day_{day}_dense.npy", np.full((rows, 13), day, dtype=np.float32))
        np.save(tmp_path / f"day_{day}_sparse.npy", np.arange(rows * 26, dtype=np.int32).reshape(rows, 26))
        np.save(tmp_path / f"day_{day}_labels.npy", np.zeros((rows, 1), dtype=np.int32))
    assert main(["data", "import", str(tmp_path / "out"), f"npy_dir={tmp_path}"]) == 0
    data = open_dataset(PreparedData(path=str(tmp_path / "out")), seed=0, log=silent)
    assert [data.num_rows(split) for split in ("train", "valid", "test")] == [30, 6, 5]
    np.save(tmp_path / "day_1_dense.npy", np.full((11, 13), np.nan, dtype=np.float32))
    assert main(["data", "import", str(tmp_path / "again"), f"npy_dir={tmp_path}"]) != 0
    assert "dense value that is not finite" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
