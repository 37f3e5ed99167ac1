"""A checkpoint encodes raw rows by itself: what it scores does not depend on files, caches or directories of its run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from recpipe.cli.main import main
from recpipe.data.encoding import differences
from recpipe.train.checkpoint_manifest import find_damage
from recpipe.train.encoded import encoding_in
from tests.train.days import day, scores, train, write

OTHER_DAY = range(8, 24)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 16 cities; `other.csv` has other ones, in another order of frequency."""
    folder = tmp_path_factory.mktemp("encoded")
    write(folder / "day1.csv", day(range(16), 700, 1))
    write(folder / "other.csv", day(OTHER_DAY, 90, 2))
    train(folder, "checkpoint.every_steps=8", "checkpoint.keep_latest_k=0")
    scores(folder / "run/checkpoints/final", folder / "other.csv", folder / "wanted.txt")
    return folder


@pytest.fixture
def moved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The last checkpoint alone, in another place and read-only; training file, cache and run are out of reach."""
    place = Path(shutil.copytree(trained / "run/checkpoints/final", tmp_path / "elsewhere"))
    for path in place.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for name in ("day1.csv", "cache", "run"):
        (trained / name).rename(trained / f"hidden-{name}")
    monkeypatch.chdir(tmp_path)
    yield place
    for name in ("day1.csv", "cache", "run"):
        (trained / f"hidden-{name}").rename(trained / name)
    for path in place.rglob("*"):
        path.chmod(0o755)


def result(caplog: pytest.LogCaptureFixture) -> dict:
    """The last line of an evaluation."""
    return json.loads(caplog.messages[-1])


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What the command itself says, and nothing of torch."""
    caplog.set_level("INFO")


def test_a_checkpoint_alone_scores_as_beside_its_run(trained: Path, moved: Path, tmp_path: Path) -> None:
    """Case 112: neither the training file, nor its cache, nor the working directory is needed."""
    found = scores(moved, trained / "other.csv", tmp_path / "found.txt")
    np.testing.assert_array_equal(found, np.loadtxt(trained / "wanted.txt"))


def test_scores_do_not_change_with_the_training_file(trained: Path, tmp_path: Path) -> None:
    """Case 112: the file under data.path was replaced; scores of an old file stay as they were."""
    original = (trained / "day1.csv").read_text()
    try:
        write(trained / "day1.csv", day(OTHER_DAY, 300, 9))
        found = scores(trained / "run/checkpoints/final", trained / "other.csv", tmp_path / "found.txt")
    finally:
        (trained / "day1.csv").write_text(original)
    np.testing.assert_array_equal(found, np.loadtxt(trained / "wanted.txt"))


def test_eval_of_a_file_takes_all_rows_by_the_checkpoints_vocabulary(
    trained: Path, moved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 111: not a tenth of the file, and not by a vocabulary of its own."""
    words = [f"checkpoint={moved}", f"data_path={trained}/other.csv", "launch.nproc=1", f"output={tmp_path}/eval.txt"]
    assert main(["eval", *words]) == 0
    found = result(caplog)
    assert found["rows"] == 90 and "all 90 rows of" in found["data"]
    np.testing.assert_allclose(np.loadtxt(tmp_path / "eval.txt"), np.loadtxt(trained / "wanted.txt"), atol=1e-7)


def test_eval_without_a_path_takes_the_rows_of_the_run_or_says_that_they_are_gone(
    trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Case 112: the run's own held-out rows, from the cache, from the file, or an error; never those of another file."""
    words = ["eval", f"checkpoint={trained}/run", "launch.nproc=1"]
    assert main(words) == 0
    wanted = result(caplog)
    file = trained / "day1.csv"
    kept = file.read_bytes()
    try:
        write(file, day(OTHER_DAY, 300, 9))
        assert main(words) == 0 and result(caplog)["auc"] == wanted["auc"]
        shutil.rmtree(trained / "cache")
        assert main(words) == 1
        assert "no longer holds the rows" in (said := capsys.readouterr().err) and "data_path=FILE" in said
        file.unlink()
        assert main(words) == 1
        assert "data_path=FILE" in capsys.readouterr().err
    finally:
        file.write_bytes(kept)
    # Another time of change, the same content: made again.
    assert main(words) == 0 and result(caplog)["auc"] == wanted["auc"]


def test_columns_may_stand_in_another_order_and_beside_others(trained: Path, tmp_path: Path) -> None:
    rows = day(OTHER_DAY, 90, 2)
    file = write(tmp_path / "other.csv", [{**row, "more": 1} for row in rows], "kind,more,city,price")
    found = scores(trained / "run", file, tmp_path / "found.txt")
    np.testing.assert_array_equal(found, np.loadtxt(trained / "wanted.txt"))


def test_a_parquet_file_is_scored_as_the_text_was(trained: Path, tmp_path: Path) -> None:
    """Integers, doubles without a fraction and texts of the same number are one value."""
    text = csv.read_csv(trained / "other.csv")
    for kind in (pa.int64(), pa.float64(), pa.string()):
        cities = text.column("city").cast(kind)
        parquet.write_table(text.set_column(text.column_names.index("city"), "city", cities), tmp_path / "o.parquet")
        found = scores(trained / "run", tmp_path / "o.parquet", tmp_path / "found.txt")
        np.testing.assert_array_equal(found, np.loadtxt(trained / "wanted.txt"))


def test_a_missing_column_is_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "bare.csv", day(OTHER_DAY, 5, 2), "label,price,kind")
    words = [f"checkpoint={trained}/run", "launch.nproc=1"]
    assert main(["score", *words, f"input={file}", f"output={tmp_path}/s.txt"]) == 1
    assert "lacks 1 column(s): city" in capsys.readouterr().err
    assert main(["eval", *words, f"data_path={file}"]) == 1
    assert "lacks 1 column(s): city" in capsys.readouterr().err


def test_rows_without_labels_are_scored_and_not_evaluated(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "bare.csv", day(OTHER_DAY, 90, 2), "price,city,kind")
    np.testing.assert_array_equal(scores(trained / "run", file, tmp_path / "s.txt"), np.loadtxt(trained / "wanted.txt"))
    assert main(["eval", f"checkpoint={trained}/run", "launch.nproc=1", f"data_path={file}"]) == 1
    assert "rows without a label" in capsys.readouterr().err


def test_checkpoints_of_a_run_share_their_vocabularies(trained: Path) -> None:
    """Many checkpoints cost one vocabulary on disk; each names it with its checksum."""
    folders = [trained / "run/checkpoints" / name for name in ("step-8", "step-16", "final")]
    files = [folder / "encoding/vocabulary/000.keys.npy" for folder in folders]
    assert len({path.stat().st_ino for path in files}) == 1
    assert not [problem for folder in folders for problem in find_damage(folder)]


def test_a_damaged_vocabulary_is_found_before_it_is_used(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(shutil.copytree(trained / "run/checkpoints/final", tmp_path / "damaged"))
    file = place / "encoding/vocabulary/000.ids.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    words = [f"checkpoint={place}", f"input={trained}/other.csv", f"output={tmp_path}/s.txt", "launch.nproc=1"]
    assert main(["score", *words]) == 1
    assert "000.ids.npy: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["convert", "average"])
def test_a_checkpoint_made_of_others_encodes_as_they_do(trained: Path, tmp_path: Path, action: str) -> None:
    final = trained / "run/checkpoints/final"
    inputs = [f"inputs=[{final}]"] if action == "average" else []
    assert main(["checkpoint", action, str(final), f"out={tmp_path}/made", *inputs]) == 0
    assert not list(find_damage(tmp_path / "made"))
    found = scores(tmp_path / "made", trained / "other.csv", tmp_path / "found.txt")
    np.testing.assert_allclose(found, np.loadtxt(trained / "wanted.txt"), atol=1e-6)


def test_checkpoints_of_other_vocabularies_have_no_mean(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of the same number stand for other values: their mean means nothing."""
    write(tmp_path / "day1.csv", day(range(1, 17), 700, 3))
    other, final = train(tmp_path), trained / "run/checkpoints/final"
    ours, theirs = encoding_in(final), encoding_in(other)
    assert ours is not None and theirs is not None and not differences(ours, ours)
    assert "feature city: the same ids stand for other values" in differences(ours, theirs)
    assert main(["checkpoint", "average", str(final), f"out={tmp_path}/mean", f"inputs=[{other}]"]) == 1
    assert "encode rows in different ways" in capsys.readouterr().err


def test_unknown_values_are_told_by_feature(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 114: ids that became 123.0 match nothing: the share of training, that of the file, and one of them are said."""
    file = write(tmp_path / "floats.csv", day(range(16), 90, 2, suffix=".0"))
    assert main(["eval", f"checkpoint={trained}/run", "launch.nproc=1", f"data_path={file}"]) == 0
    text = caplog.text
    assert "WARNING: feature city: 100.0% of the values in the rows of" in text
    assert re.search(r"the training rows let expect 0.\d%\): such as \d+\.0;", text) and "feature kind" not in text
    unseen = result(caplog)["unseen_share"]
    assert unseen["city"]["here"] == 1.0 and unseen["city"]["expected"] < 0.1 and unseen["kind"]["here"] == 0.0


def test_the_summary_has_the_shares_of_unknown_values(trained: Path) -> None:
    """Case 114: by feature and split."""
    shares = json.loads((trained / "run/summary.json").read_text())["unseen_share"]
    assert shares["city"].keys() == {"expected", "valid", "test"} and all(0 <= one < 0.2 for one in shares["city"].values())


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_scores_come_with_their_keys(trained: Path, tmp_path: Path, ending: str) -> None:
    """Case 149: columns of the input are carried along, in their order; one that the model reads, too."""
    out = tmp_path / f"scores.{ending}"
    words = [f"checkpoint={trained}/run", f"input={trained}/other.csv", f"output={out}", "output_columns=[id,city,label]"]
    assert main(["score", *words, "launch.nproc=1"]) == 0
    table = parquet.read_table(out) if ending == "parquet" else csv.read_csv(out)
    assert table.column_names == ["id", "city", "label", "score"]
    rows = day(OTHER_DAY, 90, 2)
    assert table["id"].to_pylist() == [row["id"] for row in rows]
    assert [str(one) for one in table["city"].to_pylist()] == [row["city"] for row in rows]
    np.testing.assert_allclose(table["score"].to_numpy(), np.loadtxt(trained / "wanted.txt"), atol=1e-7)


def test_carried_columns_of_parquet_keep_their_types(trained: Path, tmp_path: Path) -> None:
    """Case 149: an integer id stays an integer, also where the model reads it as a value."""
    parquet.write_table(csv.read_csv(trained / "other.csv"), tmp_path / "o.parquet")
    words = [f"checkpoint={trained}/run", f"input={tmp_path}/o.parquet", f"output={tmp_path}/s.parquet"]
    assert main(["score", *words, "output_columns=[city,price,id]", "launch.nproc=1"]) == 0
    table = parquet.read_table(tmp_path / "s.parquet")
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "string", "double"]
    assert table["city"].to_pylist() == csv.read_csv(trained / "other.csv")["city"].to_pylist()


@pytest.mark.parametrize(("columns", "said"), [("[idd]", "output_columns names idd"), ("[score]", "which is what the scores")])
def test_a_column_that_cannot_be_carried_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: str, said: str
) -> None:
    """Case 149."""
    words = [f"checkpoint={trained}/run", f"input={trained}/other.csv", f"output={tmp_path}/s.csv", "launch.nproc=1"]
    assert main(["score", *words, f"output_columns={columns}"]) != 0
    assert said in capsys.readouterr().err


def test_an_older_checkpoint_without_an_encoding_says_so(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It scores by the run's data as they are now, with a warning."""
    old = without_encoding(trained / "run/checkpoints/final", tmp_path / "old")
    np.testing.assert_array_equal(
        scores(old, trained / "other.csv", tmp_path / "s.txt"), np.loadtxt(trained / "wanted.txt")
    )
    assert "has no encoding" in caplog.text


def without_encoding(checkpoint: Path, place: Path) -> Path:
    """A checkpoint as the version before wrote it."""
    from recpipe.train.checkpoint_file import Written
    from recpipe.train.checkpoint_manifest import read_manifest, write_manifest

    shutil.copytree(checkpoint, place, ignore=shutil.ignore_patterns("encoding"))
    content = read_manifest(place)
    files = {name: Written(*one) for name, one in content["files"].items() if not name.startswith("encoding/")}
    write_manifest(place, files, {key: value for key, value in content.items() if key not in ("files", "format")})
    return place


