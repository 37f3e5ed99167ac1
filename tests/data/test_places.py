"""Which files a place holds: shards, held-out files, partitions, patterns, lists; and what is left out, with a word."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recpipe.data import open_dataset
from recpipe.data.config import TableData
from recpipe.data.open import prepare_dataset
from recpipe.data.prepare.inputs import find_sources
from recpipe.data.prepare.job import prepare
from recpipe.data.prepare.roles import role_said
from recpipe.errors import ConfigError, DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines

ENDINGS = (".csv", ".tsv", ".psv", ".txt", ".parquet")


def rows(path: Path, first: int = 0, count: int = 20) -> Path:
    """A table whose cities tell which rows they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{n % 2},{n},c{n}" for n in range(first, first + count)]
    if path.suffix in (".parquet", ".pq"):
        columns = [[n % 2 for n in range(count)], list(range(count)), [f"c{n}" for n in range(first, first + count)]]
        pq.write_table(pa.table(columns, ["label", "price", "city"]), path)
    else:
        path.write_text("\n".join(["label,price,city", *lines]) + "\n")
    return path


def table(place: Any, folder: Path, **changes: Any) -> TableData:
    settings: dict[str, Any] = {
        "path": place if isinstance(place, list) else str(place),
        "cache_dir": str(folder / "cache"),
        "dense": ["price"],
        "categorical": ["city"],
        "dense_transform": "none",
        "shuffle": "none",
        "threads": 1,
        "valid_fraction": 0.0,
        "test_fraction": 0.0,
    }
    return TableData(**(settings | changes))


def prices(config: TableData, split: str = "train") -> list[float]:
    data = open_dataset(config, 0, silent)
    return data.batch(split, 0, 0, data.num_rows(split)).dense_BD[:, 0].tolist()


def named(folder: Path, *names: str) -> Path:
    for name in names:
        rows(folder / name)
    return folder


def found(folder: Path, place: Any = "", valid: Any = "", test: Any = "") -> tuple[list[tuple[str, str]], str]:
    """(role, name below the folder) of each file, and what was said."""
    said: list[str] = []
    sources = find_sources(place or str(folder), valid, test, ENDINGS, "data=table", said.append)
    return [(source.role, str(source.path.relative_to(folder))) for source in sources], "\n".join(said)


@pytest.mark.parametrize(
    "names",
    [
        ["train.0.csv", "train.1.csv", "train.10.csv"],
        ["train-00000-of-00002.csv", "train-00001-of-00002.csv"],
        ["part-0001.parquet", "part-0002.parquet", "part-0010.parquet"],
        ["day_0.csv", "day_1.csv", "day_9.csv", "day_10.csv", "day_23.csv"],
        ["TRAIN_1.csv", "Train_2.csv"],
        ["clicks1.csv", "clicks2.csv", "latest.csv", "validated.csv"],
        ["train_part2.csv", "train_part11.csv"],
    ],
)
def test_all_shards_of_a_folder_are_read_in_the_order_of_their_numbers(tmp_path: Path, names: list[str]) -> None:
    """Case 101."""
    named(tmp_path, *reversed(names))
    assert found(tmp_path) == ([("main", name) for name in names], "")


def test_rows_of_all_shards_are_trained_on(tmp_path: Path) -> None:
    """Case 101: the rows themselves, in order."""
    for n in (0, 1, 2):
        rows(tmp_path / "in" / f"train.{n}.csv", 100 * n, 10)
    assert prices(table(tmp_path / "in", tmp_path)) == [100.0 * n + i for n in range(3) for i in range(10)]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("test-00000-of-00001.csv", "test"),
        ("validation-00000-of-00001.csv", "valid"),
        ("VALID.csv", "valid"),
        ("my_val_2.csv", "valid"),
        ("val0.csv", "valid"),
        ("dev.csv", "valid"),
        ("eval-set.csv", "valid"),
        ("clicks.Test.csv", "test"),
        ("clicksTest.csv", "test"),
        ("hold_out.csv", "test"),
        ("holdout-3.csv", "test"),
        ("test/part-0.csv", "test"),
        ("Validation/a.csv", "valid"),
        ("split=test/a.csv", "test"),
    ],
)
def test_names_that_say_held_out_are_never_training_rows(tmp_path: Path, name: str, role: str) -> None:
    """Case 102."""
    named(tmp_path, "train-00000-of-00001.csv", name)
    files, said = found(tmp_path)
    assert files == [("main", "train-00000-of-00001.csv"), (role, name)]
    assert f"{role} rows are {name}" in said and "by their names" in said


@pytest.mark.parametrize(
    "name", ["contest.csv", "latest.csv", "evaluated.csv", "device.csv", "interval_1.csv", "trainer.csv"]
)
def test_other_words_say_nothing(name: str) -> None:
    """Case 102: whole words only."""
    assert role_said((name,)) is None


def test_a_name_that_says_two_roles_is_refused(tmp_path: Path) -> None:
    """Case 102."""
    named(tmp_path, "train_valid.csv")
    with pytest.raises(
        ConfigError, match=r"train_valid.csv says main and valid rows by its name; name the files: data.path"
    ):
        found(tmp_path)


def test_held_out_files_by_name_hold_nothing_else_out(tmp_path: Path) -> None:
    """Case 102: a split with files of its own takes no rows from the others; one without takes its share."""
    for number, name in enumerate(("train.csv", "test.csv")):
        rows(tmp_path / "in" / name, 1000 * number, 200)
    config = table(tmp_path / "in", tmp_path, valid_fraction=-1.0, test_fraction=-1.0)
    assert prices(config, "test") == [1000.0 + n for n in range(200)]
    valid, train = prices(config, "valid"), prices(config)
    assert 5 < len(valid) < 50 and sorted(valid + train) == [float(n) for n in range(200)]


def test_a_test_file_without_labels_is_left_for_scoring(tmp_path: Path) -> None:
    """Case 102: train.csv, test.csv without labels and sample_submission.csv, as competitions give them."""
    named(tmp_path / "in", "train.csv", "sample_submission.csv")
    (tmp_path / "in" / "test.csv").write_text("price,city\n1,a\n")
    said: list[str] = []
    out = prepare(table(tmp_path / "in", tmp_path), said.append)
    (source,) = json.loads((out / "manifest.json").read_text())["provenance"]["sources"]
    assert source["name"] == "train.csv"
    text = "\n".join(said)
    assert "test.csv (no labels: score them" in text and "sample_submission.csv (not named as training rows" in text


def test_every_file_that_is_left_out_is_named_in_one_line(tmp_path: Path) -> None:
    """Case 102: another ending, a sub-folder, hidden ones, a compression that is not read; also when nothing is left to do."""
    named(tmp_path, "train.csv", "more/b.csv", ".secret.csv", "_SUCCESS.csv")
    for name in ("README.md", "old.csv.bz2", "notes"):
        (tmp_path / name).write_text("x")
    files, said = found(tmp_path)
    assert files == [("main", "train.csv")] and said.count("\n") == 0
    for part in (
        "README.md (ending .md)",
        "more/ (sub-folder)",
        ".secret.csv, _SUCCESS.csv (hidden)",
        "old.csv.bz2 (.bz2, a compression that is not read)",
        "notes (no ending)",
    ):
        assert part in said, said
    again: list[str] = []
    config = table(tmp_path, tmp_path.parent / "elsewhere")
    prepare(config, silent)
    prepare_dataset(config, again.append)
    assert again == [said]


def test_many_files_that_are_left_out_take_one_line(tmp_path: Path) -> None:
    named(tmp_path, "train.csv")
    for number in range(50):
        (tmp_path / f"log{number}.json").write_text("{}")
    assert "log19.json and 30 others (ending .json)" in found(tmp_path)[1]


def test_held_out_files_given_by_settings_win_over_names(tmp_path: Path) -> None:
    named(tmp_path, "train.csv", "valid.csv", "other.csv")
    files, said = found(tmp_path, valid=str(tmp_path / "other.csv"))
    assert files == [("main", "train.csv"), ("valid", "other.csv")]
    assert "valid.csv (its name says valid rows)" in said


def test_folders_of_held_out_rows(tmp_path: Path) -> None:
    """A folder given for a split gives what says so; a folder of others alone is an error with the setting."""
    named(tmp_path / "a", "train.csv", "valid-0.csv", "valid-1.csv")
    named(tmp_path / "b", "x.csv")
    files, _ = found(tmp_path, str(tmp_path / "b"), str(tmp_path / "a"))
    assert files == [("main", "b/x.csv"), ("valid", "a/valid-0.csv"), ("valid", "a/valid-1.csv")]
    named(tmp_path / "c", "test.csv")
    with pytest.raises(
        DataError, match=r"c has no data files for data.path .*left out: test.csv \(its name says test rows.*data.path=FILE"
    ):
        found(tmp_path, str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.csv", "a.csv.gz"], r"a.csv, a.csv.gz seem to be the same rows twice"),
        (["a.csv", "a.parquet"], r"a.csv, a.parquet seem to be the same rows twice"),
        (["a.csv", "b.parquet"], r"several formats \(1 with .csv, 1 with .parquet\); choose with a pattern"),
        (["a.csv", "b.tsv"], r"several formats \(1 with .csv, 1 with .tsv\)"),
    ],
)
def test_twins_and_mixed_formats_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    """Case 101."""
    with pytest.raises(DataError, match=message):
        found(named(tmp_path, *names))


def test_a_table_with_a_log_of_its_own_is_refused(tmp_path: Path) -> None:
    """The files of a Delta table hold removed rows."""
    named(tmp_path, "part-0.parquet", "_delta_log/0.csv")
    with pytest.raises(ConfigError, match="is a Delta table"):
        found(tmp_path)


def test_partitioned_folders_in_order_with_their_keys_as_columns(tmp_path: Path) -> None:
    """Case 147: nested keys, values that are encoded, a missing one, a dense key; from text and from Parquet."""
    root = tmp_path / "in"
    rows(root / "dt=2024-01-01" / "country=a%2Fb%20c" / "part.parquet", 0, 4)
    rows(root / "dt=2024-01-01" / "country=__HIVE_DEFAULT_PARTITION__" / "part.parquet", 10, 4)
    rows(root / "dt=2024-01-02" / "country=x" / "part.parquet", 20, 4)
    config = table(root, tmp_path, categorical=["city", "country", "dt"])
    data = open_dataset(config, 0, silent)
    batch = data.batch("train", 0, 0, 12)
    by_feature = batch.ids_N.reshape(3, 12).tolist()
    assert (
        by_feature[1] == [0] * 4 + [by_feature[1][4]] * 4 + [by_feature[1][8]] * 4
        and by_feature[1][4] != by_feature[1][8]
    )
    assert by_feature[2][:8] == [by_feature[2][0]] * 8 and by_feature[2][8] != by_feature[2][0]
    text = tmp_path / "text"
    rows(text / "hour=3" / "a.csv", 0, 2)
    rows(text / "hour=10" / "a.csv", 0, 3)
    assert prices(table(text, tmp_path, dense=["hour"])) == [3, 3, 10, 10, 10]
    one = table(root / "dt=2024-01-02", tmp_path, categorical=["dt"])
    assert open_dataset(one, 0, silent).schema.features[0].name == "dt"
    with pytest.raises(DataError, match=r"the name of its folder says dt=2024-01-0., which is no number"):
        prepare(table(root, tmp_path, dense=["dt"]), silent)


def test_a_column_of_the_file_wins_over_its_folder(tmp_path: Path) -> None:
    rows(tmp_path / "in" / "price=7" / "a.csv", 0, 3)
    assert prices(table(tmp_path / "in", tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("day_*.csv", ["day_2.csv", "day_10.csv"]),
        ("day_[0-9].csv", ["day_2.csv"]),
        ("day_?.csv", ["day_2.csv"]),
        ("**/*.csv", ["day_2.csv", "day_10.csv", "sub/a.csv"]),
        ("**", ["day_2.csv", "day_10.csv", "sub/a.csv"]),
        ("s*", ["sub/a.csv"]),
        ("*/*.csv", ["sub/a.csv"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, wanted: list[str]) -> None:
    """Case 147."""
    named(tmp_path, "day_10.csv", "day_2.csv", "sub/a.csv")
    files, _ = found(tmp_path, f"{tmp_path}/{pattern}")
    assert sorted(files) == sorted(("main", name) for name in wanted)
    assert [name for _, name in files if name.startswith("day")] == [name for name in wanted if name.startswith("day")]


def test_patterns_relative_to_the_directory_and_without_a_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(tmp_path, "b_1.csv", "a[1].csv")
    monkeypatch.chdir(tmp_path)
    assert [str(s.path) for s in find_sources("b_*.csv", "", "", ENDINGS, "data=table")] == ["b_1.csv"]
    assert [str(s.path) for s in find_sources("a[1].csv", "", "", ENDINGS, "data=table")] == ["a[1].csv"]
    with pytest.raises(DataError, match=r"c_\*.csv matches no file; check data.path"):
        find_sources("c_*.csv", "", "", ENDINGS, "data=table")


def test_patterns_hold_out_by_name_unless_they_spell_the_word(tmp_path: Path) -> None:
    """Cases 102 and 147."""
    named(tmp_path, "a.csv", "a_test.csv")
    assert found(tmp_path, f"{tmp_path}/*.csv")[0] == [("main", "a.csv"), ("test", "a_test.csv")]
    assert found(tmp_path, f"{tmp_path}/*_test.csv")[0] == [("main", "a_test.csv")]


def test_lists_of_files_keep_their_order(tmp_path: Path) -> None:
    """Case 147: also with folders and patterns in them, and for held-out rows."""
    a, b = rows(tmp_path / "a.csv", 0, 3), rows(tmp_path / "b.csv", 10, 3)
    assert prices(table([str(b), str(a)], tmp_path)) == [10, 11, 12, 0, 1, 2]
    config = table([str(a)], tmp_path, valid_path=[str(b)])
    assert prices(config, "valid") == [10, 11, 12]
    assert prepare(table([str(a)], tmp_path), silent) == prepare(table(str(a), tmp_path), silent)
    with pytest.raises(ConfigError, match="is given twice as main; name it once"):
        prepare(table([str(a), str(tmp_path / "*.csv")], tmp_path), silent)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": "b"}, "data.path=.* is no path"),
        (True, "is no path"),
        ([], r"data.path=\[\] names no file"),
        (1.5, "is no path"),
    ],
)
def test_what_is_no_path_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_sources(value, "", "", ENDINGS, "data=table")


def test_an_empty_file_among_others_is_skipped_with_a_word(tmp_path: Path) -> None:
    """Case 135: of no bytes, of blank lines, of a header only, of no rows in Parquet."""
    folder = tmp_path / "in"
    named(folder, "a.csv")
    for name, text in (
        ("b.csv", ""),
        ("c.csv", "\n\n"),
        ("d.csv", "label,price,city\n"),
        ("e.csv", "label,price,city"),
    ):
        (folder / name).write_text(text)
    said: list[str] = []
    config = table(folder, tmp_path)
    prepare(config, said.append)
    assert len(prices(config)) == 20
    assert any("b.csv (empty)" in line for line in said) and any(
        line.startswith("no rows are in") and "c.csv" in line for line in said
    )
    typed = tmp_path / "typed"
    rows(typed / "part-0.parquet", 0, 5), rows(typed / "part-1.parquet", 0, 0)
    assert len(prices(table(typed, tmp_path))) == 5


@pytest.mark.parametrize("text", ["", "\n", "label,price,city\n"])
def test_a_file_without_rows_alone_is_an_error(tmp_path: Path, text: str) -> None:
    """Case 135."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=r"a.csv (is empty|holds no rows)|no training rows in .*a.csv"):
        prepare(table(tmp_path / "a.csv", tmp_path), silent)


def test_remote_folders_patterns_and_lists(tmp_path: Path) -> None:
    """Case 147: through fsspec."""
    from upath import UPath

    place = UPath("memory://places")
    for name in ("dt=1/a.csv", "dt=2/a.csv", "test/a.csv"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(rows(tmp_path / "local.csv").read_bytes())
    try:
        wanted = ["dt=1/a.csv", "dt=2/a.csv", "test/a.csv"]
        for given in (str(place), f"{place}/**/*.csv", [f"{place}/dt=1", f"{place}/dt=2/*.csv", f"{place}/test"]):
            sources = find_sources(given, "", "", ENDINGS, "data=table")
            assert ["/".join(source.path.parts[-2:]) for source in sources] == wanted
        assert dict(sources[0].keys) == {"dt": "1"}
    finally:
        place.fs.rm(place.path, recursive=True)


def test_criteo_folders_keep_their_rules(tmp_path: Path) -> None:
    """Days beat others; a folder of one file is that file; names without an ending are data."""
    lines = criteo_lines(60)
    for name in ("day_0", "day_1", "notes"):
        write_lines(tmp_path / "days" / name if (tmp_path / "days").mkdir(exist_ok=True) is None else tmp_path, lines)
    said: list[str] = []
    out = prepare(criteo_config(tmp_path / "days", cache_dir=str(tmp_path / "cache"), split="days"), said.append)
    names = [source["name"] for source in json.loads((out / "manifest.json").read_text())["provenance"]["sources"]]
    assert names == ["day_0", "day_1"] and any("notes (not named as training rows" in line for line in said)
    one = write_lines(tmp_path / "train.txt", lines)
    assert contents(prepare(criteo_config(one), silent))
