"""Files and settings that are not as they should be: one clear message, and nothing half-written taken for whole."""

import json
from pathlib import Path

import pytest

from recpipe.data import open_dataset
from recpipe.data.config import CriteoData, PreparedData, SyntheticData
from recpipe.data.prepare import disk
from recpipe.data.prepare.job import prepare
from recpipe.data.verify import verify_directory
from recpipe.errors import ConfigError, DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines


def refused(config: CriteoData, message: str) -> None:
    """The preparation fails with this message and leaves nothing under the final name."""
    with pytest.raises((DataError, ConfigError), match=message):
        prepare(config, silent)
    assert not Path(config.out or "nowhere").exists()
    assert not any(Path(config.cache_dir).glob("*/manifest.json"))


def test_one_bad_line_goes_to_quarantine_with_file_line_and_reason(tmp_path: Path) -> None:
    """Case 2."""
    lines = criteo_lines(400)
    lines[123] = lines[123].rsplit(b"\t", 2)[0]
    path = write_lines(tmp_path / "train.txt.gz", lines)
    out = prepare(criteo_config(path, max_bad_share=0.01), silent)
    entries = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert [(e["file"], e["line"], e["reason"]) for e in entries] == [("train.txt.gz", 124, "38 fields, expected 40")]
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["lines"], manifest["bad_lines"], sum(manifest["rows"].values())) == (400, 1, 399)


def test_line_numbers_count_over_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 3000)
    lines = criteo_lines(200)
    lines[7] = lines[150] = b"bad"
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines), max_bad_share=0.5), silent)
    assert [json.loads(e)["line"] for e in (out / "quarantine.jsonl").read_text().splitlines()] == [8, 151]


def test_too_many_bad_lines_stop_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(90) + [b"bad"] * 10)
    refused(criteo_config(path, max_bad_share=0.05), r"10 of 100 lines are bad \(10.00%\).*10 x 1 fields, expected 40")


def test_file_of_another_format_is_named_before_the_work(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", [b"1,2,3"] * 50)
    refused(criteo_config(path), "train.txt is not in the Criteo format: its lines have 1 tab-separated fields")


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf\n"])
def test_file_without_rows(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(data)
    refused(criteo_config(path), "train.txt (is empty|holds no rows)")


@pytest.mark.parametrize("name", ["train.txt.gz", "train.txt.zst"])
@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999])
def test_truncated_file(tmp_path: Path, name: str, keep: float) -> None:
    path = write_lines(tmp_path / name, criteo_lines(2000))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    refused(criteo_config(path), rf"{name} is (truncated|damaged).*fetch it again")


def test_damaged_gz(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt.gz", criteo_lines(500))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    refused(criteo_config(path), "train.txt.gz is (damaged|truncated)")


def test_joined_gz_members_are_read_to_the_end(tmp_path: Path) -> None:
    lines = criteo_lines(300)
    first, second = (
        write_lines(tmp_path / f"{n}.gz", part).read_bytes() for n, part in (("a", lines[:90]), ("b", lines[90:]))
    )
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "train.txt.gz").write_bytes(first + second)
    joined = prepare(criteo_config(tmp_path / "joined" / "train.txt.gz"), silent)
    plain = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines)), silent)
    assert contents(joined) == contents(plain)


def test_byte_order_mark_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    lines = criteo_lines(120)
    plain = contents(prepare(criteo_config(write_lines(tmp_path / "a.txt", lines)), silent))
    windows = write_lines(tmp_path / "b.txt", lines, ending=b"\r\n")
    marked = tmp_path / "c.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    for path in (windows, marked):
        assert contents(prepare(criteo_config(path), silent)) == plain


def test_field_of_ten_megabytes_is_one_bad_line(tmp_path: Path) -> None:
    lines = criteo_lines(100)
    lines[40] = b"1\t" + b"x" * 10_000_000
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines), max_bad_share=0.02), silent)
    (entry,) = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert entry["line"] == 41 and len(entry["text"]) < 1000
    assert "longer than a chunk" in entry["reason"]


def test_missing_path_and_missing_setting(tmp_path: Path) -> None:
    refused(criteo_config(tmp_path / "nothing.txt"), "nothing.txt does not exist; check data.path")
    refused(criteo_config(tmp_path, path=""), "data=criteo reads files: give data.path=FILE-or-DIR")
    (tmp_path / "empty").mkdir()
    refused(criteo_config(tmp_path / "empty"), "empty has no data files")


def test_same_file_as_training_and_held_out_rows(tmp_path: Path) -> None:
    """Case 14."""
    path = write_lines(tmp_path / "train.txt", criteo_lines(50))
    refused(criteo_config(path, valid_path=str(path)), "given as main and as valid")


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    """Case 15: no setting is ignored in silence."""
    path = write_lines(tmp_path / "train.txt", criteo_lines(50))
    refused(criteo_config(path, split="days"), "at least two day files")
    refused(criteo_config(path, split="days", valid_fraction=0.1), "split=days holds out the last day")
    refused(criteo_config(path, valid_fraction=0.6, test_fraction=0.5), "must leave rows to train on")
    refused(criteo_config(path, dense_transform="logg"), "did you mean log")
    refused(criteo_config(path, vocabulary="frequenc"), "did you mean frequency")
    refused(criteo_config(path, memory_limit="lots"), "not a size such as 2GiB")
    refused(criteo_config(path, memory_limit="1MB"), "too small")
    refused(criteo_config(path, threads=100000), "too small for 100000 threads")
    refused(criteo_config(path, frequency_threshold=0), "frequency_threshold=0 must be at least 1")


def test_prepared_directory_as_raw_input_and_the_other_way_round(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(60))
    out = prepare(criteo_config(path), silent)
    with pytest.raises(ConfigError, match=f"use data=prepared data.path={out}"):
        prepare(criteo_config(path, path=str(out), cache_dir=str(tmp_path / "other")), silent)
    with pytest.raises(DataError, match=r"is not a prepared directory: it has no manifest.json"):
        open_dataset(PreparedData(path=str(tmp_path)), seed=0, log=silent)
    with pytest.raises(ConfigError, match="data=prepared reads a directory"):
        open_dataset(PreparedData(), seed=0, log=silent)


def test_output_of_another_configuration_is_kept(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(60))
    out = prepare(criteo_config(path, out=str(tmp_path / "out")), silent)
    before = contents(out)
    with pytest.raises(DataError, match="holds other files or settings"):
        prepare(criteo_config(path, out=str(out), frequency_threshold=5), silent)
    assert contents(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    with pytest.raises(DataError, match="mine is not empty and not a prepared directory"):
        prepare(criteo_config(path, out=str(tmp_path / "mine")), silent)


def test_unfinished_work_of_another_configuration_is_not_mixed_in(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(60) + [b"bad"] * 9)
    with pytest.raises(DataError, match="lines are bad"):
        prepare(criteo_config(path, out=str(tmp_path / "out")), silent)
    with pytest.raises(DataError, match="unfinished work of other settings"):
        prepare(criteo_config(path, out=str(tmp_path / "out"), frequency_threshold=7), silent)
    assert prepare(criteo_config(path, out=str(tmp_path / "out"), max_bad_share=0.5), silent).is_dir()


def test_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(500))
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda directory: usage)
    refused(criteo_config(path), "0.00 GB free, about 0.00 GB are needed")


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "count"])
def test_verify_finds_damage(tmp_path: Path, harm: str) -> None:
    """Case 16."""
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", criteo_lines(150))), silent)
    victim = out / "train-00000.ids.npy"
    data = bytearray(victim.read_bytes())
    if harm == "flip":
        data[-1] ^= 0x40
        victim.write_bytes(bytes(data))
    elif harm == "cut":
        victim.write_bytes(bytes(data[:-8]))
    elif harm == "remove":
        victim.unlink()
    else:
        manifest = json.loads((out / "manifest.json").read_text())
        manifest["rows"]["train"] += 1
        (out / "manifest.json").write_text(json.dumps(manifest))
    assert verify_directory(out)


def test_id_beyond_the_table_in_a_damaged_shard_stops_training(tmp_path: Path) -> None:
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", criteo_lines(150))), silent)
    victim = out / "train-00000.ids.npy"
    data = bytearray(victim.read_bytes())
    data[-1] = 0x40
    victim.write_bytes(bytes(data))
    data_set = open_dataset(PreparedData(path=str(out)), seed=0, log=silent)
    with pytest.raises(DataError, match="at feature cat_25, row"):
        data_set.batch("train", 0, 0, data_set.num_rows("train"))


def test_no_rows_left_to_train_on(tmp_path: Path) -> None:
    """Case 13."""
    path = write_lines(tmp_path / "train.txt", criteo_lines(1))
    refused(criteo_config(path, valid_fraction=0.999999, test_fraction=0.0), "no training rows in")


def test_unknown_kind_and_impossible_sizes() -> None:
    with pytest.raises(ConfigError, match="did you mean synthetic"):
        open_dataset(SyntheticData(name="synthetik"), seed=0, log=silent)
    with pytest.raises(ConfigError, match="num_train=0 is out of range, max_ids=1 is out of range"):
        open_dataset(SyntheticData(num_train=0, max_ids=1), seed=0, log=silent)
