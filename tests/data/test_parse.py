"""Each line lands among the rows or in quarantine, never both, never neither, whatever its neighbours are."""

import random

import numpy as np
import pyarrow as pa
import pytest

from recpipe.data.prepare.criteo import CriteoFormat
from recpipe.data.prepare.parse import parse_lines
from recpipe.data.prepare.raw import Raw
from tests.data.lines import criteo_lines

FMT = CriteoFormat()
MUTATIONS = 10_000


def parse(lines: list[bytes]) -> Raw:
    return parse_lines(b"".join(line + b"\n" for line in lines), FMT)


def mutate(line: bytes, rng: random.Random) -> bytes:
    """One of the ways in which lines break, or do not."""
    at = rng.randrange(len(line) + 1)
    fields = line.split(b"\t")
    column = rng.randrange(len(fields))
    junk = [b"x", b"\x00", b"\xff\xfe", b"\r", b" ", b"-", b"0x1f", b"1e3", b"9" * 30, b"1.5", b'"', b"nan", b"+7", b""]
    kind = rng.randrange(7)
    if kind == 0:
        return line[:at]
    if kind == 1:
        return line[:at] + rng.choice(junk) + line[at:]
    if kind == 2:
        return b"\t".join(fields[:column] + [rng.choice(junk)] + fields[column + 1 :])
    if kind == 3:
        return b"\t".join(fields[:column] + fields[column + 1 :])
    if kind == 4:
        return b"\t".join([*fields[:column], b"", *fields[column:]])
    if kind == 5:
        return line[:at] + bytes([rng.randrange(256)]).replace(b"\n", b"") + line[at + 1 :]
    return line


def test_ten_thousand_mutations_land_in_one_place_each() -> None:
    rng = random.Random(0)
    originals = criteo_lines(200)
    lines = [mutate(rng.choice(originals), rng) for _ in range(MUTATIONS)]
    raw = parse(lines)
    bad = {entry.line for entry in raw.bad}
    assert raw.lines == MUTATIONS
    assert len(bad) == len(raw.bad)
    blank = {number for number, line in enumerate(lines) if not line.strip(b" ")}
    assert raw.skipped == len(blank) and not blank & bad
    assert raw.table.num_rows + len(bad) + len(blank) == MUTATIONS
    assert 1000 < len(bad) < 9000
    for number, line in rng.sample([(n, line) for n, line in enumerate(lines) if n not in blank], 300):
        assert (parse([line]).table.num_rows == 0) == (number in bad), line


def test_rows_keep_their_order_and_values_between_bad_lines() -> None:
    lines = criteo_lines(500)
    broken = {3, 4, 77, 250, 499}
    mixed = [line[:30] if number in broken else line for number, line in enumerate(lines)]
    raw = parse(mixed)
    assert [entry.line for entry in raw.bad] == sorted(broken)
    assert raw.table.equals(parse([line for number, line in enumerate(lines) if number not in broken]).table)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        (0, b"2", "label is neither 0 nor 1"),
        (0, b"", "label is neither 0 nor 1"),
        (5, b"abc", "int_4 is not an integer"),
        (5, b"1.5", "int_4 is not an integer"),
        (20, b"xyz", "cat_6 is not 1 to 8 hex digits"),
        (39, b"123456789", "cat_25 is not 1 to 8 hex digits"),
        (39, b"\xff\xfe", "cat_25 is not 1 to 8 hex digits"),
    ],
)
def test_reason_names_the_column(column: int, value: bytes, reason: str) -> None:
    lines = criteo_lines(20)
    fields = lines[7].split(b"\t")
    fields[column] = value
    lines[7] = b"\t".join(fields)
    assert [(entry.line, entry.reason) for entry in parse(lines).bad] == [(7, reason)]


def test_number_of_fields_is_told() -> None:
    line = criteo_lines(1)[0]
    reasons = [entry.reason for entry in parse([line.split(b"\t", 1)[1], line + b"\t", line + b"\rx"]).bad]
    assert reasons == [
        "39 fields, expected 40 (no label?)",
        "41 fields, expected 40",
        "carriage return inside the line",
    ]


def test_windows_line_ends_are_line_ends() -> None:
    lines = criteo_lines(30)
    assert parse([line + b"\r" for line in lines]).table.equals(parse(lines).table)


def test_integers_stay_exact_and_missing_stays_missing() -> None:
    fields = [b"1", b"-3", b"", b"2147483648", *[b"0"] * 10, b"", b"ffffffff", *[b"0"] * 24]
    table = parse([b"\t".join(fields)]).table
    assert table["int_0"].to_pylist() == [-3.0]
    assert table["int_1"].to_pylist() == [None]
    assert table["int_2"].to_pylist() == [2147483648.0]
    assert table["cat_0"].to_pylist() == [None]
    assert table["cat_1"].to_pylist() == [2**32 - 1]
    assert pa.types.is_unsigned_integer(table["cat_1"].type)


def test_unlabelled_lines_have_no_label() -> None:
    fmt = CriteoFormat(labelled=False)
    raw = parse_lines(b"".join(line + b"\n" for line in criteo_lines(10, labelled=False)), fmt)
    assert raw.table["label"].null_count == 10
    assert np.isfinite(raw.ranges[0].high)
