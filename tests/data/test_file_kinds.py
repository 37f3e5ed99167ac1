"""What a file is, whatever its name; columns that cannot be used; delimiters; control characters of strangers."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import zstandard

from recpipe.data import open_dataset
from recpipe.data.config import TableData
from recpipe.data.prepare.formats import make_formats
from recpipe.data.prepare.header import delimiter_of
from recpipe.data.prepare.inputs import find_sources
from recpipe.data.prepare.job import prepare
from recpipe.errors import ConfigError, DataError
from tests.data.lines import criteo_config, silent

ROWS = [(n % 2, float(n), f"c{n % 5}") for n in range(40)]
NAMES = ["label", "price", "city"]
FRAME = pa.table([pa.array(column) for column in zip(*ROWS, strict=True)], NAMES)


def text(delimiter: str = ",") -> bytes:
    return "".join(delimiter.join(map(str, row)) + "\n" for row in [NAMES, *ROWS]).encode()


def parquet(frame: pa.Table = FRAME) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(frame, buffer)
    return buffer.getvalue()


def table(path: Path, **changes: Any) -> TableData:
    given = {"path": str(path), "cache_dir": str(path.parent / "cache"), "dense": ["price"], "categorical": ["city"]}
    return TableData(**({**given, "valid_fraction": 0.0, "test_fraction": 0.0, "threads": 1} | changes))


def prepared_rows(path: Path, **changes: Any) -> int:
    return open_dataset(table(path, **changes), 0, silent).num_rows("train")


def refused(path: Path, message: str, **changes: Any) -> None:
    with pytest.raises((DataError, ConfigError), match=message) as error:
        prepare(table(path, **changes), silent)
    assert "\x1b" not in str(error.value) and len(str(error.value)) < 1500


@pytest.mark.parametrize("name", ["x.pq", "X.PARQUET", "x", "x.parq", "x.csv", "x.dat", "part-00000.snappy"])
def test_parquet_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    """Case 133: named itself; in a folder, too, unless its name says text."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(parquet())
    assert prepared_rows(tmp_path / "in" / name, cache_dir=str(tmp_path)) == 40
    assert prepared_rows(tmp_path / "in", cache_dir=str(tmp_path)) == 40


@pytest.mark.parametrize("name", ["x.csv", "X.CSV.GZ", "x.gz", "x", "x.zst", "x.txt"])
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compression_is_known_by_its_first_bytes(tmp_path: Path, name: str, pack: Any) -> None:
    """Case 133."""
    (tmp_path / name).write_bytes(pack(text()))
    assert prepared_rows(tmp_path / name) == 40


def packed_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", text())
    return buffer.getvalue()


def written(write: Any) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (bz2.compress(text()), "bzip2"),
        (lzma.compress(text()), "xz"),
        (packed_zip(), "zip"),
        (written(lambda sink: feather.write_feather(FRAME, sink)), "Arrow"),
        (b"FEA1" + bytes(40), "Feather"),
        (written(lambda sink: pa.ipc.new_stream(sink, FRAME.schema).write_table(FRAME)), "Arrow stream"),
        (written(lambda sink: orc.write_table(FRAME, sink)), "ORC"),
        (text().decode().encode("utf-16"), "UTF-16"),
        (text().decode().encode("utf-16-le"), "UTF-16"),
        (gzip.compress(parquet()), "Parquet inside of gz"),
        (gzip.compress(gzip.compress(text())), "gzip inside of gz"),
        (b"Obj\x01avro", "Avro"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, data: bytes, kind: str) -> None:
    """Case 133."""
    (tmp_path / "x.csv").write_bytes(data)
    refused(
        tmp_path / "x.csv", rf"x.csv is a file of another format \({kind}.*data=table reads Parquet and delimited text"
    )


def test_the_format_that_is_set_must_fit(tmp_path: Path) -> None:
    """Case 133: the message says which fits."""
    (tmp_path / "a").write_bytes(parquet())
    (tmp_path / "b.parquet").write_bytes(text())
    refused(tmp_path / "a", "is a Parquet file: data.format=parquet", format="csv")
    refused(tmp_path / "b.parquet", "first bytes are not PAR1; text needs data.format=csv")
    assert prepared_rows(tmp_path / "b.parquet", format="csv") == 40
    refused(tmp_path / "a", "data.format=parqet is unknown; did you mean parquet", format="parqet")
    with pytest.raises(
        DataError, match=r"not in the Criteo format: it is a file of another one \(Parquet\); data=table reads it"
    ):
        prepare(criteo_config(tmp_path / "a"), silent)


@pytest.mark.parametrize("word", ["ORCHID,1", "BZhang,2", "SEQ,3"])
def test_words_that_begin_as_other_formats_do_are_text(tmp_path: Path, word: str) -> None:
    name = word.split(",")[0]
    (tmp_path / "a.csv").write_text(f"{name},label,price,city\n" + f"{word},1,2,c\n" * 20)
    with pytest.raises(DataError, match="5 fields, expected 4"):
        prepared_rows(tmp_path / "a.csv")


def test_the_same_name_twice(tmp_path: Path) -> None:
    """Case 131: in Parquet and in text; a name that is not used may be there twice."""
    twice = pa.table([*FRAME.columns, FRAME["city"]], [*NAMES, "city"])
    (tmp_path / "a.parquet").write_bytes(parquet(twice))
    (tmp_path / "a.csv").write_bytes(b"label,price,city,city\n1,2,a,b\n")
    for name in ("a.parquet", "a.csv"):
        refused(tmp_path / name, f"{name}: column city is there twice")
    spare = pa.table([*FRAME.columns, FRAME["city"], FRAME["city"]], [*NAMES, "x", "x"])
    (tmp_path / "b.parquet").write_bytes(parquet(spare))
    (tmp_path / "b.csv").write_bytes(b",label,,price,x,x,city\n" + b"0,1,0,2,7,7,a\n" * 40)
    assert prepared_rows(tmp_path / "b.parquet") == prepared_rows(tmp_path / "b.csv") == 40


LISTS = [["a", "b"], ["a"], None, []] * 10
LIST_TYPES = {
    "list": pa.list_(pa.string()),
    "large list": pa.large_list(pa.string()),
    "list view": pa.list_view(pa.string()),
    "large list view": pa.large_list_view(pa.string()),
    "of dictionaries": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "of bytes": pa.list_(pa.binary()),
    "of large texts": pa.list_(pa.large_string()),
}


def with_city(column: pa.Array) -> pa.Table:
    return pa.table([FRAME["label"], FRAME["price"], column], NAMES)


def lengths(path: Path) -> list[int]:
    data = open_dataset(table(path, multi_valued=["city"], shuffle="none"), 0, silent)
    return data.batch("train", 0, 0, 4).lengths_FB.tolist()


@pytest.mark.parametrize("kind", LIST_TYPES)
def test_lists_of_every_kind_are_multi_valued(tmp_path: Path, kind: str) -> None:
    """Case 132."""
    plain = pa.array(LISTS, pa.list_(pa.string()))
    column = plain if kind == "of dictionaries" else pa.array(LISTS, LIST_TYPES[kind])
    if kind == "of dictionaries":
        entries = plain.flatten().dictionary_encode()
        column = pa.ListArray.from_arrays(plain.offsets, entries, mask=plain.is_null())
    (tmp_path / "a.parquet").write_bytes(parquet(with_city(column)))
    assert lengths(tmp_path / "a.parquet") == [2, 1, 0, 0]
    refused(tmp_path / "a.parquet", r"column city holds lists: data.multi_valued=\[city\]")


def test_lists_of_fixed_size_and_of_numbers(tmp_path: Path) -> None:
    """Case 132."""
    fixed = pa.array([[1, 2], [3, 4], None, [5, None]] * 10, pa.list_(pa.int64(), 2))
    (tmp_path / "a.parquet").write_bytes(parquet(with_city(fixed)))
    assert lengths(tmp_path / "a.parquet")[:3] == [2, 2, 0]
    refused(tmp_path / "a.parquet", r"column city holds lists: data.multi_valued=\[city\]")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([{"x": 1}] * 40), "column city holds records .*columns of their own"),
        (pa.array([[("k", 1)]] * 40, pa.map_(pa.string(), pa.int64())), "column city holds records"),
        (pa.array([[[1]]] * 40), "column city holds lists of lists"),
        (pa.array([[{"x": 1}]] * 40), "column city holds lists of lists or of records"),
    ],
)
def test_nested_columns_are_refused_in_our_words(tmp_path: Path, values: pa.Array, message: str) -> None:
    """Case 132."""
    (tmp_path / "a.parquet").write_bytes(parquet(with_city(values)))
    refused(tmp_path / "a.parquet", message, multi_valued=["city"])


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x"] * 40).dictionary_encode(),
        pa.array([7] * 40).dictionary_encode(),
        pa.array([True] * 40),
        pa.array([b"\xff"] * 40),
        pa.array([b"ab"] * 40, pa.binary(2)),
        pa.array(["x"] * 40, pa.large_string()),
        pa.array(["x"] * 40, pa.string_view()),
        pa.array([1] * 40, pa.timestamp("us", "UTC")),
        pa.array([1] * 40, pa.date32()),
        pa.nulls(40),
        pa.array([1.5] * 40).cast(pa.decimal128(5, 2)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_every_plain_type_are_categories(tmp_path: Path, values: pa.Array) -> None:
    """Case 132."""
    (tmp_path / "a.parquet").write_bytes(parquet(with_city(values)))
    assert prepared_rows(tmp_path / "a.parquet") == 40


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([[1.0]] * 40), r"column price holds lists .*no numbers"),
        (pa.array(["cheap"] * 40), "column price is of type string"),
        (pa.array([1] * 40, pa.timestamp("us")), "column price is of type timestamp"),
    ],
)
def test_dense_columns_that_are_no_numbers(tmp_path: Path, values: pa.Array, message: str) -> None:
    """Case 132: no error of Arrow is shown as an unexpected one."""
    frame = pa.table([FRAME["label"], values, FRAME["city"]], NAMES)
    (tmp_path / "a.parquet").write_bytes(parquet(frame))
    refused(tmp_path / "a.parquet", message)


def test_dense_columns_of_every_numeric_type(tmp_path: Path) -> None:
    for number, kind in enumerate([pa.int8(), pa.uint64(), pa.float16(), pa.bool_(), pa.decimal128(30, 2), pa.null()]):
        values = (
            pa.nulls(40)
            if kind == pa.null()
            else pa.array([1] * 40).cast(pa.float64() if kind == pa.float16() else kind)
        )
        values = values.cast(kind) if kind == pa.float16() else values
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(parquet(pa.table([FRAME["label"], values, FRAME["city"]], NAMES)))
        assert prepared_rows(path) == 40


@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_a_damaged_parquet_file(tmp_path: Path, keep: float) -> None:
    data = bytearray(parquet())
    for at in range(8, int(len(data) * keep)):
        data[at] ^= 0x5A
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    refused(tmp_path / "a.parquet", "a.parquet (is damaged|is not a readable Parquet file|lacks)")
    (tmp_path / "b.parquet").write_bytes(parquet()[: int(len(data) * keep)])
    refused(tmp_path / "b.parquet", "b.parquet is not a readable Parquet file")


@pytest.mark.parametrize(
    ("name", "setting", "sign"),
    [
        ("a.tsv", "", "\t"),
        ("a.TAB", "", "\t"),
        ("a.tsv.gz", "", "\t"),
        ("a.psv", "", "|"),
        ("a.csv", "", ","),
        ("a.txt", "", ","),
        ("a.tsv", ",", ","),
        ("a.csv", "tab", "\t"),
        ("a.csv", "\\t", "\t"),
        ("a.csv", "\t", "\t"),
        ("a.csv", "semicolon", ";"),
        ("a.csv", "|", "|"),
        ("a.csv", "pipe", "|"),
        ("a.csv", "\\x01", "\x01"),
        ("a.csv", "space", " "),
    ],
)
def test_delimiters_by_the_ending_and_by_words(tmp_path: Path, name: str, setting: str, sign: str) -> None:
    """Case 143."""
    assert delimiter_of(setting, Path(name)) == sign
    data = text(sign)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert prepared_rows(tmp_path / name, delimiter=setting) == 40


@pytest.mark.parametrize("setting", ["::", "||", "\\t\\t", '"', "\n", "¦", "tabs", "\x1b]"])
def test_delimiters_that_cannot_be(tmp_path: Path, setting: str) -> None:
    """Case 143."""
    (tmp_path / "a.csv").write_bytes(text())
    refused(tmp_path / "a.csv", "data.delimiter=.* must be one character", delimiter=setting)


@pytest.mark.parametrize(("sign", "word"), [(";", "semicolon"), ("\t", "tab"), ("|", "pipe")])
def test_a_header_of_one_column_hints_at_the_delimiter(tmp_path: Path, sign: str, word: str) -> None:
    """Case 143: with a header and without."""
    (tmp_path / "a.csv").write_bytes(text(sign))
    refused(tmp_path / "a.csv", f"lacks 3 column.*its first line has no comma, but a {word}: data.delimiter={word}")
    bare = {"header": False, "columns": NAMES}
    (tmp_path / "b.csv").write_bytes(text(sign).split(b"\n", 1)[1])
    refused(tmp_path / "b.csv", f"its first line has no comma, but a {word}: data.delimiter={word}", **bare)


def test_control_characters_of_a_file_are_shown_escaped(tmp_path: Path) -> None:
    """Case 125: in a header, in the name of a column of Parquet, in a value, in the name of a file."""
    bad = "\x1b]0;owned\x07"
    (tmp_path / "a.csv").write_bytes(f"label,price,{bad}\n1,2,a\n".encode())
    refused(tmp_path / "a.csv", r"lacks 1 column.*\\x1b\]0;owned\\x07")
    (tmp_path / "a.parquet").write_bytes(parquet(pa.table(FRAME.columns, ["label", "price", bad])))
    refused(tmp_path / "a.parquet", r"lacks 1 column.*\\x1b\]0;owned\\x07")
    (tmp_path / "b.csv").write_bytes(b"label,price,city\n" + b"1,2,c\n" * 30 + f"1,x{bad}\x9b,c\n".encode())
    out = prepare(table(tmp_path / "b.csv", max_bad_share=0.5), silent)
    raw = (out / "quarantine.jsonl").read_text(encoding="utf-8")
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in raw)
    assert json.loads(raw)["text"] == "1,x\\x1b]0;owned\\x07\\x9b,c"
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "train.csv").write_bytes(text())
    (folder / f"note{bad}.md").write_text("x")
    said: list[str] = []
    find_sources(str(folder), "", "", (".csv",), "data=table", said.append)
    assert "note\\x1b]0;owned\\x07.md" in said[0] and "\x1b" not in said[0]


def test_a_parquet_file_read_as_text_shows_no_bytes(tmp_path: Path) -> None:
    """Case 125."""
    (tmp_path / "x").write_bytes(parquet())
    with pytest.raises(DataError) as error:
        make_formats(table(tmp_path / "x", format="csv"), find_sources(str(tmp_path / "x"), "", "", (".csv",), ""))
    assert str(error.value).isprintable()
