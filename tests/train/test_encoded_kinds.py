"""Every kind of data beside a checkpoint: lists with weights, hashes, prepared directories, ids that were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recpipe.cli.main import main
from tests.train.days import SMALL, day, scores, write

WORDS = ["data=table", "data.dense=[price]", "data.categorical=[city,tags]", "data.multi_valued=[tags]"]


def tagged(path: Path, rows: int, seed: int) -> Path:
    """A file with a list of tags in each row, and a weight of each tag."""
    lines = ["label,price,city,tags,weights"]
    for n, row in enumerate(day(range(16), rows, seed)):
        tags = [f"t{(n * k) % 7}" for k in range(n % 4)]
        lines.append(
            f"{row['label']},{row['price']},{row['city']},{'^'.join(tags)},{'^'.join(str(0.5 + k) for k in range(len(tags)))}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "words", [["data.weights={tags: weights}"], ["data.vocabulary=hash", "data.hash_size=40"], ["data.multi_hot_sizes=[3,2]"]]
)
def test_a_file_is_scored_as_the_held_out_rows_of_training(tmp_path: Path, words: list[str]) -> None:
    """Lists with weights, hashed values, and bags made of one-hot rows, each by the checkpoint alone."""
    one_hot = "multi_hot" in words[0]
    make = (lambda path, rows, seed: write(path, day(range(16), rows, seed))) if one_hot else tagged
    columns = ["data=table", "data.dense=[price]", "data.categorical=[city,kind]"] if one_hot else WORDS
    make(tmp_path / "train.csv", 200, 1)
    make(tmp_path / "test.csv", 60, 2)
    places = [f"data.path={tmp_path}/train.csv", f"data.test_path={tmp_path}/test.csv", f"data.cache_dir={tmp_path}/cache"]
    assert main(["train", *columns, *SMALL, *places, *words, f"run.dir={tmp_path}/run"]) == 0
    assert main(["eval", f"checkpoint={tmp_path}/run", "launch.nproc=1", f"output={tmp_path}/wanted.txt"]) == 0
    (tmp_path / "train.csv").unlink()
    found = scores(tmp_path / "run", tmp_path / "test.csv", tmp_path / "found.txt")
    np.testing.assert_allclose(found, np.loadtxt(tmp_path / "wanted.txt"), atol=1e-6)


def test_prepared_rows_are_used_where_they_were_encoded_in_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 111: ids of another preparation stand for other values."""
    write(tmp_path / "day1.csv", day(range(16), 300, 1))
    write(tmp_path / "day2.csv", day(range(1, 17), 300, 2))
    for name in ("day1", "day2"):
        words = ["data=table", "data.dense=[price]", "data.categorical=[city,kind]"]
        assert main(["data", "prepare", *words, f"source={tmp_path}/{name}.csv", f"out={tmp_path}/{name}"]) == 0
    run = ["data=prepared", f"data.path={tmp_path}/day1", *SMALL, f"run.dir={tmp_path}/run"]
    assert main(["train", *run]) == 0
    words = ["eval", f"checkpoint={tmp_path}/run", "launch.nproc=1"]
    assert main([*words, f"data_path={tmp_path}/day1", "split=valid"]) == 0
    assert main([*words, f"data_path={tmp_path}/day1.csv"]) == 0
    capsys.readouterr()
    assert main([*words, f"data_path={tmp_path}/day2"]) == 1
    assert "feature city: the same ids stand for other values" in capsys.readouterr().err
    assert main(["train", f"resume={tmp_path}/run", f"data.path={tmp_path}/day2", "epochs=2"]) == 1
    assert "feature city: the same ids stand for other values" in capsys.readouterr().err


def test_ids_that_were_given_encode_no_raw_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model trained on imported .npy files says that it knows no values."""
    draw = np.random.default_rng(0)
    (tmp_path / "days").mkdir()
    for number in range(2):
        np.save(tmp_path / f"days/day_{number}_dense.npy", draw.normal(size=(80, 2)).astype(np.float32))
        np.save(tmp_path / f"days/day_{number}_labels.npy", draw.integers(0, 2, 80).astype(np.float32))
        np.save(tmp_path / f"days/day_{number}_sparse.npy", draw.integers(0, 9, (80, 3)).astype(np.int32))
    assert main(["data", "import", str(tmp_path / "prepared"), f"npy_dir={tmp_path}/days"]) == 0
    assert main(["train", "data=prepared", f"data.path={tmp_path}/prepared", *SMALL, f"run.dir={tmp_path}/run"]) == 0
    file = write(tmp_path / "rows.csv", day(range(4), 5, 1))
    words = [f"checkpoint={tmp_path}/run", f"output={tmp_path}/s.txt", "launch.nproc=1"]
    assert main(["score", *words, f"input={file}"]) != 0
    assert "trained on ids that were given" in capsys.readouterr().err
    assert main(["score", *words, f"input={tmp_path}/prepared"]) == 0
