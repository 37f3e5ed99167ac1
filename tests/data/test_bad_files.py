"""Bad input through the command: one clear message, exit code not 0, and no result."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from recpipe.cli.main import main
from recpipe.data import open_dataset
from recpipe.data.config import TableData
from recpipe.data.prepare import job
from recpipe.data.prepare.job import prepare
from recpipe.data.prepare.vocabulary import HashEncoder
from tests.data.lines import criteo_config, criteo_lines, silent, write_lines

LINES = criteo_lines(80)
TEXT = b"\n".join(LINES) + b"\n"
BAD_FILES = {
    "empty": (b"", "train.txt is empty"),
    "only newlines": (b"\n\n\n", "train.txt holds no rows"),
    "no labels": (b"\n".join(criteo_lines(30, labelled=False)), "has no labels (39 fields a line"),
    "another format": (b"a,b,c\n1,2,3\n" * 20, "1 tab-separated fields, expected 40"),
    "wide characters": (TEXT.decode().encode("utf-16"), "81 of 81 lines are bad (100.00%)"),
    "a binary file": (bytes(range(256)) * 100, "is not in the Criteo format"),
    "many bad lines": (TEXT + b"bad\n" * 9, "9 of 89 lines are bad (10.11%)"),
    "lone carriage returns": (b"\r".join(LINES), "lines are bad (100.00%)"),
    "one field of ten megabytes": (TEXT + b"1\t" + b"f" * 10_000_000, "1 of 81 lines are bad"),
}
BAD_ARCHIVES = {
    "cut": (gzip.compress(TEXT)[:-300], "train.txt.gz is truncated"),
    "cut in its first bytes": (gzip.compress(TEXT)[:9], "train.txt.gz is truncated"),
    "no archive": (TEXT, "train.txt.gz is damaged"),
    "joined with something else": (gzip.compress(TEXT) + TEXT, "train.txt.gz is damaged"),
}


def refused(path: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails with one line of error that has the message, and writes no result."""
    out = path.parent / "out"
    assert main(["data", "prepare", f"source={path}", f"out={out}"]) != 0
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0], lines
    assert message in errors[0] and "unexpected" not in errors[0]
    assert not out.exists()


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_text(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, message = BAD_FILES[kind]
    (tmp_path / "train.txt").write_bytes(data)
    refused(tmp_path / "train.txt", message, capsys)


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_bad_archive(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, message = BAD_ARCHIVES[kind]
    (tmp_path / "train.txt.gz").write_bytes(data)
    refused(tmp_path / "train.txt.gz", message, capsys)


def test_file_that_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "train.txt", LINES)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read every file")
    refused(path, "Permission denied", capsys)


def test_a_file_that_ends_between_the_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut while its parts are read: the rows that are left are counted, none is made up."""
    monkeypatch.setattr("recpipe.data.prepare.formats.SPAN", 4000)
    path = write_lines(tmp_path / "train.txt", LINES)
    make = job.make_readers

    def cutting(*given: object) -> object:
        readers = make(*given)
        path.write_bytes(TEXT[: TEXT.find(b"\n", 9000) + 1])
        return readers

    monkeypatch.setattr(job, "make_readers", cutting)
    out = prepare(criteo_config(path), silent)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["lines"] == TEXT[: TEXT.find(b"\n", 9000) + 1].count(b"\n")


def test_bytes_that_are_no_utf8_are_values_like_others(tmp_path: Path) -> None:
    """In a table they make ids; among hex values they are bad lines, quarantined as readable text."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"label,city\n" + b"1,M\xfcnchen\n0,K\xf6ln\n" * 20)
    config = TableData(path=str(path), categorical=["city"], cache_dir=str(tmp_path / "cache"), valid_fraction=0)
    assert open_dataset(config, 0, silent).schema.features[0].num_ids == 4
    lines = [*LINES[:40], b"1\t\xff\xfe" + LINES[40][2:], *LINES[41:]]
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines), max_bad_share=0.02), silent)
    (entry,) = [json.loads(line) for line in (out / "quarantine.jsonl").read_text(encoding="utf-8").splitlines()]
    assert entry["line"] == 41 and entry["text"].startswith("1\t\\xff\\xfe")


def test_ids_beyond_31_bits_stay_whole(tmp_path: Path) -> None:
    """Case 5: from the file to the batch, with no float and no 32-bit integer on the way."""
    size = 2**31 + 11
    path = write_lines(tmp_path / "train.txt", LINES)
    config = criteo_config(path, vocabulary="hash", hash_size=size, valid_fraction=0.0, test_fraction=0.0)
    data = open_dataset(config, 0, silent)
    batch = data.batch("train", 0, 0, 80)
    found = set(batch.ids_N.tolist())
    assert max(found) < size and any(one > 2**24 and one % 2 for one in found)
    keys = np.array(sorted({int(line.split(b"\t")[14], 16) for line in LINES if line.split(b"\t")[14]}))
    first = set(batch.ids_N[:80].tolist()) - {0}
    assert first == set(HashEncoder(size, 0).encode(keys).tolist())
