"""Quoted values of several lines, quotes that are never closed, headers with quotes, and lines without anything."""

import csv
import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data import open_dataset
from recpipe.data.config import TableData
from recpipe.data.prepare.header import read_header
from recpipe.data.prepare.job import prepare
from recpipe.data.prepare.parse import parse_lines
from recpipe.data.prepare.raw import Raw
from recpipe.data.prepare.records import find_records
from recpipe.data.prepare.table import TableFormat
from recpipe.errors import DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines

HEADER = b"label,price,city\n"
CONFIG = TableData(dense=["price"], categorical=["city"])
FMT = TableFormat(CONFIG, ["label", "price", "city"], "a.csv", "main")


def parse(text: bytes) -> Raw:
    return parse_lines(text, FMT)


def prepared(folder: Path, text: bytes, name: str = "a.csv", **changes: object) -> tuple[dict, list[tuple[int, str]]]:
    """The manifest, and line and reason of each bad line."""
    path = folder / name
    path.write_bytes(text)
    given = {
        "cache_dir": str(folder / "cache"),
        "threads": 1,
        "valid_fraction": 0.0,
        "test_fraction": 0.0,
        "max_bad_share": 0.9,
    }
    out = prepare(TableData(path=str(path), dense=["price"], categorical=["city"], **(given | changes)), silent)
    entries = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    return json.loads((out / "manifest.json").read_text()), [(entry["line"], entry["reason"]) for entry in entries]


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (b'1,1,a\n1,1,"a\n', 1, [1]),
        (b'1,1,"new\nyork"\n0,2,b\n', 2, []),
        (b'1,1,"new\r\nyork"\r\n0,2,b\r\n', 2, []),
        (b'1,1,"a\n0,2,b\n0,3,c\n', 2, [0]),
        (b'1,1,"a\n0,2,"b"\n0,3,c\n', 2, [0]),
        (b'1,1,"a\n0,2,b\n0,3,c"\n', 2, [0]),
        (b'"1,1,a\n0,2,b\n', 1, [0]),
        (b'1,1,5" wide\n0,2,"6"" wide"\n', 2, []),
        (b'1,1,5" wide\n0,2,"6""\nwide"\n1,1,7"\n', 3, []),
        (b'1,"new\nyork"\n0,2,b\n', 1, [0]),
        (b'1,1,"a\n\nb"\n\n0,2,b\n', 2, []),
        (b'1,1,""\n0,2,""""\n', 2, []),
        (b'1,1,"a\n0,2,""\n0,3,c\n', 2, [0]),
        (b'1,"2\n",b\n0,3,c\n', 1, [0]),
        (b'1,1,"a" b\n0,2,c\n', 2, []),
        (b'1,1,"x","a\nb"\n0,2,c\n', 1, [0]),
        (b'"1\n",1,"c\n0,3,c\n', 1, [0]),
    ],
)
def test_quotes_of_several_lines_and_quotes_never_closed(text: bytes, good: int, bad: list[int]) -> None:
    """Case 103."""
    raw = parse(text)
    assert (raw.table.num_rows, [entry.line for entry in raw.bad]) == (good, bad)
    assert raw.lines == text.count(b"\n") and raw.lines - raw.skipped == good + len(bad)


def test_a_quote_never_closed_is_quarantined_with_its_reason_and_line(tmp_path: Path) -> None:
    """Case 103: at the end of a file, and in the middle of one."""
    good = b"".join(b"%d,%d,x\n" % (n % 2, n) for n in range(20))
    manifest, bad = prepared(tmp_path, HEADER + good + b'1,1,"a\n')
    assert bad == [(22, "a quote is never closed: a value or its quotes do not parse")]
    assert manifest["rows"]["train"] == 20
    _, bad = prepared(tmp_path, HEADER + good[:24] + b'1,1,"a\n' + good[24:], "b.csv")
    assert [line for line, _ in bad] == [6]


def test_lines_behind_a_value_of_several_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 103: over chunks, too; the count of lines is that of records."""
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 60)
    text = HEADER + b'1,1,"new\n\nyork"\n' * 30 + b"2,1,bad\n" + b"1,1,a\n"
    manifest, bad = prepared(tmp_path, text)
    assert [(line, reason.partition(" (")[0]) for line, reason in bad] == [(92, "label is neither 0 nor 1")]
    assert manifest["rows"]["train"] == 31 and manifest["lines"] == 32


@pytest.mark.parametrize("size", [40, 64, 100, 1000])
def test_no_chunk_is_cut_inside_of_quotes(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 103: the result is that of one chunk, whatever their size."""
    rng = random.Random(3)
    cities = ["a", 'say "hi"', "new\nyork", "x,y", "\n\n", 'tail"', "", "long " * 5]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([(n % 2, n, rng.choice(cities)) for n in range(200)])
    path = tmp_path / "a.csv"
    path.write_bytes(HEADER + buffer.getvalue().encode())
    one = prepare(
        TableData(path=str(path), dense=["price"], categorical=["city"], cache_dir=str(tmp_path / "one")), silent
    )
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: size)
    two = prepare(
        TableData(path=str(path), dense=["price"], categorical=["city"], cache_dir=str(tmp_path / "two")), silent
    )
    assert contents(one) == contents(two)
    assert sum(json.loads((two / "manifest.json").read_text())["rows"].values()) == 200


def test_a_value_longer_than_a_chunk_is_a_quote_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 50)
    rows = [b"%d,%d,x\n" % (n % 2, n) for n in range(100)]
    manifest, bad = prepared(tmp_path, HEADER + b"".join([*rows[:40], b'1,1,"a\n', *rows[40:]]))
    assert [line for line, _ in bad] == [42] and manifest["rows"]["train"] == 100


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet='",\n1a', max_size=60))
def test_records_of_any_text_are_whole_lines(text: str) -> None:
    """Every record ends with a newline, and what a CSV reader reads from quotes that are closed is what we read."""
    data = text.encode() + b"\n"
    for whole in (True, False):
        found = find_records(data, b",", whole)
        assert all(data[end - 1 : end] == b"\n" for end in found.ends)
        assert not whole or found.last_end() == len(data)
    strict = list(csv.reader(io.StringIO(data.decode(), newline=""))) if _is_plain(data) else None
    if strict is not None:
        assert len(strict) == len(find_records(data, b",", True).ends)


def _is_plain(data: bytes) -> bool:
    """Quotes open and close fields, and nothing else."""
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    except csv.Error:
        return False
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue() == data.decode()


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b'label,"price, EUR",city\n', ["label", "price, EUR", "city"]),
        (b'\xef\xbb\xbflabel,"price, EUR",city\r\n', ["label", "price, EUR", "city"]),
        (b'label,"price\nEUR",city\n', ["label", "price\nEUR", "city"]),
        (b'"label", price ,"say ""x"""\n', ["label", "price", 'say "x"']),
        (b"\n\nlabel,price,city\n", ["label", "price", "city"]),
        (b",label,price,\n", ["", "label", "price", ""]),
        (b"label,price,city", ["label", "price", "city"]),
    ],
)
def test_headers_are_read_as_rows_are(tmp_path: Path, header: bytes, names: list[str]) -> None:
    """Case 103."""
    path = tmp_path / "a.csv"
    path.write_bytes(header)
    text = header.removeprefix(b"\xef\xbb\xbf")
    found = read_header(path, text, ",")
    assert (found.names, found.size, found.lines) == (names, len(text), text.count(b"\n"))


def test_a_quoted_header_names_columns_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    """Case 103: a header of two lines, a byte-order mark, line ends of Windows."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbflabel,"price,\nEUR",city\r\n' + b"1,7,a\r\n0,8,b\r\n" * 10 + b"1,1\r\n")
    config = TableData(
        path=str(path), dense=["price,\nEUR"], categorical=["city"], cache_dir=str(tmp_path), max_bad_share=0.5
    )
    config.valid_fraction = config.test_fraction = 0.0
    data = open_dataset(config, 0, silent)
    assert data.num_rows("train") == 20
    (entry,) = [json.loads(line) for line in next(tmp_path.glob("*/quarantine.jsonl")).read_text().splitlines()]
    assert (entry["line"], entry["reason"]) == (23, "2 fields, expected 3")


def test_a_header_whose_quote_is_never_closed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a quote in the header is never closed"):
        prepared(tmp_path, b'label,"price,city\n1,2,a\n')


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_blank_lines_are_no_rows_and_no_complaint(tmp_path: Path, ending: bytes) -> None:
    """Case 135: at the end, in between, of spaces, in a table and in Criteo's format."""
    rows = [b"%d,%d,x" % (n % 2, n) for n in range(500)]
    lines = [*HEADER.split(), *rows[:7], b"", b"", *rows[7:], b"  ", b""]
    manifest, bad = prepared(tmp_path, ending.join(lines) + ending)
    assert (manifest["rows"]["train"], manifest["lines"], bad) == (500, 500, [])
    plain = criteo_lines(100)
    one = prepare(criteo_config(write_lines(tmp_path / "a.txt", plain), max_bad_share=0.0), silent)
    two = prepare(
        criteo_config(write_lines(tmp_path / "b.txt", [*plain[:9], b"", *plain[9:], b""], ending), max_bad_share=0.0),
        silent,
    )
    assert contents(one) == contents(two)


def test_lines_behind_blank_ones_keep_their_numbers(tmp_path: Path) -> None:
    """Case 135."""
    _, bad = prepared(tmp_path, HEADER + b"1,1,a\n\n\n0,1,b\n\n2,1,c\n")
    assert [(line, reason.partition(" (")[0]) for line, reason in bad] == [(7, "label is neither 0 nor 1")]
