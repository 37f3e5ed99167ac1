"""Tables by column names: text with and without a header, Parquet, several values in a field, weights."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recpipe.batch import Batch
from recpipe.data import open_dataset
from recpipe.data.config import TableData
from recpipe.data.prepare.job import prepare
from recpipe.errors import ConfigError, DataError
from tests.data.lines import silent

ROWS = [
    (1, 0.5, "a", "x^y", "1^2"),
    (0, None, "b", "", ""),
    (1, 2.5, "", "x", "3.5"),
    (0, 3.0, "a", "z^z^x", "1^1^1"),
] * 25
HEADER = "clicked,price,city,tags,tag_weights"


def table(path: Path, **changes: Any) -> TableData:
    settings: dict[str, Any] = {
        "path": str(path),
        "cache_dir": str(path.parent / "cache"),
        "label": "clicked",
        "dense": ["price"],
        "categorical": ["city", "tags"],
        "multi_valued": ["tags"],
        "weights": {"tags": "tag_weights"},
        "valid_fraction": 0.0,
        "test_fraction": 0.0,
        "shuffle": "none",
        "dense_transform": "none",
        "threads": 1,
        "rows_per_shard": 30,
    }
    return TableData(**(settings | changes))


def text(path: Path, rows: list[tuple] = ROWS, header: str = HEADER, delimiter: str = ",", ending: str = "\n") -> Path:
    lines = [header.replace(",", delimiter)] * bool(header)
    lines += [delimiter.join("" if value is None else str(value) for value in row) for row in rows]
    path.write_bytes("".join(line + ending for line in lines).encode())
    return path


def whole(config: TableData) -> Batch:
    data = open_dataset(config, seed=0, log=silent)
    return data.batch("train", 0, 0, data.num_rows("train"))


def assert_same(found: Batch, wanted: Batch) -> None:
    for name in ("dense_BD", "ids_N", "lengths_FB", "weights_N", "labels_B"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_values_of_a_small_table(tmp_path: Path) -> None:
    batch = whole(table(text(tmp_path / "a.csv")))
    assert batch.labels_B[:4].tolist() == [1, 0, 1, 0]
    assert batch.dense_BD[:4, 0].tolist() == [0.5, 0.0, 2.5, 3.0]
    assert batch.lengths_FB[100:104].tolist() == [2, 0, 1, 3]
    # city: a is the most frequent; tags: x (75), z (50), y (25).
    assert batch.ids_N[:4].tolist() == [2, 3, 0, 2]
    assert batch.ids_N[100:106].tolist() == [2, 4, 2, 3, 3, 2]
    assert batch.weights_N is not None and batch.weights_N[100:106].tolist() == [1, 2, 3.5, 1, 1, 1]


def test_parquet_text_and_headerless_text_are_the_same_rows(tmp_path: Path) -> None:
    wanted = whole(table(text(tmp_path / "a.csv")))
    lists = [
        [row[3].split("^") if row[3] else None for row in ROWS],
        [[float(w) for w in row[4].split("^")] if row[4] else None for row in ROWS],
    ]
    columns = [[row[n] for row in ROWS] for n in range(3)]
    names = HEADER.split(",")
    pq.write_table(
        pa.table([*map(pa.array, columns), *map(pa.array, lists)], names), tmp_path / "b.parquet", row_group_size=17
    )
    assert_same(whole(table(tmp_path / "b.parquet")), wanted)
    bare = text(tmp_path / "c.tsv", header="", delimiter="\t", ending="\r\n")
    assert_same(whole(table(bare, header=False, columns=names, delimiter="\t")), wanted)


def test_integers_in_parquet_and_text_get_the_same_ids(tmp_path: Path) -> None:
    users = [2**40 + n % 7 for n in range(60)]
    rows = [(n % 2, user) for n, user in enumerate(users)]
    plain = {"dense": [], "categorical": ["user"], "multi_valued": [], "weights": {}}
    a = text(tmp_path / "a.csv", rows, "clicked,user")
    pq.write_table(pa.table({"clicked": [r[0] for r in rows], "user": users}), tmp_path / "b.parquet")
    assert whole(table(a, **plain)).ids_N.tolist() == whole(table(tmp_path / "b.parquet", **plain)).ids_N.tolist()


def test_quoted_values_may_hold_the_delimiter(tmp_path: Path) -> None:
    rows = [(1, 1.0, '"Paris, France"', "x", "1"), (0, 1.0, '"say ""hi"""', "x", "1")] * 10
    batch = whole(table(text(tmp_path / "a.csv", rows)))
    assert sorted(set(batch.ids_N[:20].tolist())) == [2, 3]


def test_all_missing_columns_at_once_with_the_nearest_names(tmp_path: Path) -> None:
    """Case 12."""
    path = text(tmp_path / "a.csv", header="clicked,prise,citty,tags,tag_weights")
    with pytest.raises(DataError) as error:
        prepare(table(path), silent)
    for part in ("lacks 2 column(s)", "price (did you mean prise?)", "city (did you mean citty?)", "no setting names"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2,1,a,x,1", "clicked is neither 0 nor 1 (data.label_positive=[...] says which values are positive): '2'"),
        ("1,-inf,a,x,1", "price is not finite: '-inf'"),
        ("1,inf,a,x,1", "price is not finite"),
        ("1,abc,a,x,1", "price is not a number: 'abc'"),
        ("1,1,a,x", "4 fields, expected 5"),
        ("1,1,a,x^y,1", "tag_weights has not one weight for each value"),
        ("1,1,a,x,nan", "tag_weights has a weight that is not a finite number"),
        ("1,1,a,x,heavy", "tag_weights has a weight that is not a finite number"),
        ('1,1,"a,x,1', "a value or its quotes do not parse"),
    ],
)
def test_bad_rows_are_quarantined_with_their_line_in_the_file(tmp_path: Path, row: str, reason: str) -> None:
    path = text(tmp_path / "a.csv")
    lines = path.read_text().splitlines()
    lines[5] = row
    path.write_text("\n".join(lines) + "\n")
    out = prepare(table(path, max_bad_share=0.05), silent)
    (entry,) = (out / "quarantine.jsonl").read_text().splitlines()
    assert '"line": 6' in entry and reason in entry


def test_bad_rows_of_parquet_are_quarantined(tmp_path: Path) -> None:
    frame = pa.table({"clicked": [0, 1, 2, None] * 20, "price": [1.0, float("nan"), 1.0, 1.0] * 20})
    pq.write_table(frame, tmp_path / "a.parquet")
    config = table(tmp_path / "a.parquet", categorical=[], multi_valued=[], weights={}, max_bad_share=0.9)
    out = prepare(config, silent)
    assert len((out / "quarantine.jsonl").read_text().splitlines()) == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delimiter": "::"}, "must be one character"),
        ({"dense": [], "categorical": [], "multi_valued": [], "weights": {}}, "needs columns"),
        ({"header": False}, "names of all columns"),
        ({"columns": ["a"]}, "columns has no effect"),
        ({"multi_valued": ["tag"]}, "did you mean tags"),
        ({"weights": {"city": "price"}}, "not in data.multi_valued"),
        ({"dense": ["city"]}, "columns in two roles: city"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(table(text(tmp_path / "a.csv"), **change), silent)


def test_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match=r"a.parquet is not a readable Parquet file"):
        prepare(table(tmp_path / "a.parquet"), silent)
