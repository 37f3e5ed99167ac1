"""The door for strangers' files: what it lets through to the bit, and what it refuses with the place and the reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recpipe.errors import CheckpointError, DataError
from recpipe.escapes import printable, shown
from recpipe.untrusted import LARGE, SMALL, Source, Value, member, name_problem, read_pieces

SOURCE = Source("f.json")


def value(raw: Any) -> Value:
    return SOURCE.parsed(json.dumps({"files": {"x": {"size": raw}}}))["files"]["x"]["size"]


def test_valid_json_is_what_json_gives() -> None:
    content = {"a": [1, 2.5, -3e7, None, True, {"b": "é\u202e\n", "": []}], "c": {"[]]][": '"\\"{[['}}
    for text in (json.dumps(content), json.dumps(content, ensure_ascii=False), json.dumps(content, indent=1)):
        assert SOURCE.parsed(text).raw == content
    assert SOURCE.parsed("[" * 32 + "]" * 32).items(1)


@pytest.mark.parametrize(
    ("raw", "read", "reason"),
    [
        ("3", "integer", "is a text, not an integer"),
        (True, "integer", "is true or false, not an integer"),
        (1.0, "integer", "is a number, not an integer"),
        (-1, "integer", "is -1, not in 0 to"),
        (2**64, "integer", "is 18,446,744,073,709,551,616, not in 0 to"),
        (10**4000, "integer", "is an integer of 13,288 bits, not in"),
        (10**4000, "number", "is an integer of 13,288 bits, not in"),
        (None, "number", "is null, not a number"),
        (True, "number", "is true or false, not a number"),
        (1, "flag", "is an integer, not true or false"),
        ([], "text", "is a list, not a text"),
        ({}, "items", "is an object, not a list"),
        ([], "fields", "is a list, not an object"),
        ("../x", "name", "which is no name of a file there: it has an empty part, . or .."),
    ],
)
def test_a_wrong_value_is_told_by_its_place(raw: Any, read: str, reason: str) -> None:
    """case 126"""
    with pytest.raises(DataError) as told:
        getattr(value(raw), read)()
    assert str(told.value).startswith("f.json: is damaged: files.x.size is ")
    assert reason in str(told.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is no JSON text"),
        ("", "it is no JSON text"),
        ('{"a": NaN}', "it has the number NaN"),
        ('{"a": -Infinity}', "it has the number -Infinity"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
        ('{"a": 1, "b": 2, "a": 3}', "a is there twice"),
        ("[" * 33 + "]" * 33, "it is nested deeper than 32 levels"),
        ('[{"a":' * 20 + "1" + "}]" * 20, "it is nested deeper than 32 levels"),
        ("[" * 10**6, "it is no JSON text"),
        ('"' + '\\"' * 10**6, "it is no JSON text"),
        ("[" + "[]," * (SMALL // 8) + "[]]", "values"),
        ("9" * 10**5, "it is no JSON text"),
        ("1" * (SMALL + 1), "more than 16,777,216"),
    ],
    ids=str.__len__,
)
def test_a_text_that_is_no_json_is_damaged(text: str, reason: str) -> None:
    """case 126: in time and memory that follow from the length of the text."""
    with pytest.raises(DataError, match=r"f\.json: is damaged: ") as told:
        SOURCE.parsed(text)
    assert reason in str(told.value)
    assert len(str(told.value)) < 400


def test_nan_is_a_number_only_where_measurements_are_kept() -> None:
    read = Source("f.json", non_finite=True).parsed('{"best": -Infinity, "auc": NaN}')
    assert read["best"].number(low=-float("inf")) == -float("inf")
    with pytest.raises(DataError, match="best is -inf, not in"):
        read["best"].number()
    with pytest.raises(DataError, match="auc is nan, not in"):
        read["auc"].number(-float("inf"), float("inf"))


def test_fields_that_miss_or_are_unknown_are_named() -> None:
    """case 126"""
    read = SOURCE.parsed('{"a": 1, "b\\u001b[1m": 2}')
    with pytest.raises(DataError, match="the content has no z"):
        read.fields(["z"])
    with pytest.raises(DataError, match="has no z"):
        read["z"]
    with pytest.raises(DataError, match=r"has the unknown key b\\x1b\[1m \(a newer version may have written it\)"):
        read.fields(["a"], [])
    assert set(read.fields(["a"])) == {"a", "b\x1b[1m"}


GOOD = ["a", "weights/rank_0.safetensors", ".hidden", "a..b", "été", "x" * 255]
BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a//b",
    "a/",
    "/etc/passwd",
    "~/x",
    "C:\\x",
    "c:x",
    "a\\b",
    "a\0b",
    "a\nb",
    "\x1b]0;x",
]
BAD += ["a/./b", "x" * 256, "a/" * 600 + "a", "a\u202eb", "\ud800"]


def test_names_stay_below_their_directory() -> None:
    """case 122"""
    assert [name for name in GOOD if name_problem(name)] == []
    assert [name for name in BAD if not name_problem(name)] == []


def test_a_listed_file_is_a_regular_file_of_its_directory(tmp_path: Path) -> None:
    """case 122: by its name and by what lies there."""
    folder = tmp_path / "given"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (folder / "sub" / "file").write_text("f")
    (folder / "inside").symlink_to("sub/file")
    (folder / "outside").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    source = Source(folder / "manifest.json", CheckpointError)
    assert member(folder, "sub/file", source).read_text() == "f"
    assert member(folder, "inside", source).read_text() == "f"
    for name, reason in (
        ("../secret", "it lists the file ../secret"),
        ("outside", "a link that leaves the directory"),
        ("up/secret", "a link that leaves the directory"),
        ("loop", "cannot be read"),
        ("pipe", "it is no regular file"),
        ("sub", "it is no regular file"),
        ("gone", "gone: is missing"),
        ("inside/x", "cannot be read|is missing"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            member(folder, name, source)


def test_reading_ends(tmp_path: Path) -> None:
    """case 122: a pipe, a device or a file that is larger than it may be is never read to its end."""
    big, pipe = tmp_path / "big", tmp_path / "pipe"
    with big.open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=f"more than {LARGE:,} bytes"):
        Source(big, large=True).data()
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(DataError, match="it is no regular file"):
            Source(path).data()
    with pytest.raises(DataError, match="it is a directory"):
        Source(tmp_path).json()
    with pytest.raises(DataError, match="No such file"):
        Source(tmp_path / "none").json()
    assert sum(map(len, read_pieces(big, 100))) == 101


def test_text_of_strangers_does_nothing_to_a_terminal() -> None:
    """case 125: C0, C1, DEL, marks of direction, lone surrogates; a long text is cut."""
    for letter in ("\x1b]0;t\x07", "\x00", "\x7f", "\x9b31m", "\r", "\u202e", "\u2066", "\u2028", "\ud800", "\ufeff"):
        assert shown(f"a{letter}b").isprintable()
        assert printable(f"a{letter}b").isprintable()
    assert shown("a\nb\tc") == "a\\nb\\tc"
    assert printable("a\nb\tc\x1b") == "a\nb\tc\\x1b"
    assert shown("x" * 1000) == "x" * 200 + "... (1,000 characters)"
    assert shown("Straße, 東京, naïve") == "Straße, 東京, naïve"
