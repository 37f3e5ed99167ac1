"""Remote files through fsspec: read where they are when preparing, copied once when training."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from recpipe.cli.main import main
from recpipe.data import open_dataset
from recpipe.data.config import PreparedData, TableData
from recpipe.data.prepare import formats
from recpipe.data.prepare.job import prepare
from recpipe.errors import ConfigError, DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[UPath]:
    """A directory in fsspec's memory; gone after the test."""
    place = UPath(f"memory://{request.node.name.replace('[', '-').replace(']', '')}")
    place.mkdir(parents=True, exist_ok=True)
    yield place
    place.fs.rm(place.path, recursive=True)


def upload(directory: Path, target: UPath) -> UPath:
    """All files of a local directory."""
    for file in directory.rglob("*"):
        if file.is_file():
            there = target / str(file.relative_to(directory))
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "train.txt.zst"])
def test_remote_text_gives_what_local_text_gives(
    bucket: UPath, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "SPAN", 20_000)
    local = write_lines(tmp_path / name, criteo_lines(300))
    (bucket / name).write_bytes(local.read_bytes())
    for path in (bucket / name, bucket):
        out = str(tmp_path / f"out-{path.name}")
        found = prepare(criteo_config(tmp_path / "x", path=str(path), out=out), silent)
        assert contents(found) == contents(prepare(criteo_config(local), silent))


def test_remote_days_split_and_remote_parquet(bucket: UPath, tmp_path: Path) -> None:
    lines = criteo_lines(100)
    for day in (0, 9, 10):
        (bucket / f"day_{day}").write_bytes(b"\n".join(lines[day : day + 30]))
    out = prepare(criteo_config(tmp_path / "x", path=str(bucket), split="days"), silent)
    sources = json.loads((out / "manifest.json").read_text())["provenance"]["sources"]
    assert [source["name"] for source in sources] == ["day_0", "day_9", "day_10"]
    pq.write_table(pa.table({"label": [0, 1] * 20, "city": list("abcd") * 10}), tmp_path / "rows.parquet")
    (bucket / "rows.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes())
    found, wanted = (
        prepare(TableData(path=str(path), categorical=["city"], cache_dir=str(tmp_path / "cache")), silent)
        for path in (bucket / "rows.parquet", tmp_path / "rows.parquet")
    )
    assert found != wanted and contents(found) == contents(wanted)


def test_a_changed_remote_file_is_prepared_again(bucket: UPath, tmp_path: Path) -> None:
    lines = criteo_lines(60)
    (bucket / "train.txt").write_bytes(b"\n".join(lines))
    config = criteo_config(tmp_path / "x", path=str(bucket / "train.txt"))
    first = prepare(config, silent)
    assert prepare(config, silent) == first
    (bucket / "train.txt").write_bytes(b"\n".join(lines[::-1]))
    assert prepare(config, silent) != first


def test_remote_directory_is_copied_shard_by_shard_once(bucket: UPath, tmp_path: Path) -> None:
    local = prepare(criteo_config(write_lines(tmp_path / "train.txt", criteo_lines(400))), silent)
    remote = upload(local, bucket / "prepared")
    cache = tmp_path / "copies"
    one, two = (
        open_dataset(PreparedData(path=str(path), cache_dir=str(cache), shuffle="block", shuffle_rows=50), 1, silent)
        for path in (local, remote)
    )
    # Statistics read the first rows; held-out shards are not asked for yet.
    assert not list(cache.rglob("valid-*.npy"))
    for split in ("train", "valid", "test"):
        a, b = (data.batch(split, 0, 0, data.num_rows(split)) for data in (one, two))
        assert a.ids_N.tolist() == b.ids_N.tolist() and a.dense_BD.tolist() == b.dense_BD.tolist()
    copied = sorted(file.name for file in cache.rglob("*.npy"))
    assert copied == sorted(file.name for file in local.glob("*.npy"))
    for file in bucket.fs.find(bucket.path):
        if file.endswith(".npy"):
            bucket.fs.rm(file)
    again = open_dataset(PreparedData(path=str(remote), cache_dir=str(cache)), 1, silent)
    assert again.batch("test", 0, 0, 5).num_rows == 5


def test_damage_on_the_way_is_found_and_no_copy_is_left(bucket: UPath, tmp_path: Path) -> None:
    local = prepare(criteo_config(write_lines(tmp_path / "train.txt", criteo_lines(200))), silent)
    victim = local / "valid-00000.ids.npy"
    values = np.load(victim)
    values[0, 0] += 1
    np.save(victim, values)
    remote = upload(local, bucket / "prepared")
    data = open_dataset(PreparedData(path=str(remote), cache_dir=str(tmp_path / "copies")), 1, silent)
    for _ in range(2):
        with pytest.raises(DataError, match="another checksum than its manifest says"):
            data.batch("valid", 0, 0, 1)
    assert not list(tmp_path.joinpath("copies").rglob("valid-00000.ids.npy"))


def test_inspect_reads_a_remote_manifest(bucket: UPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = prepare(criteo_config(write_lines(tmp_path / "train.txt", criteo_lines(200))), silent)
    upload(local, bucket / "prepared")
    assert main(["data", "inspect", f"{bucket}/prepared"]) == 0
    assert "200 read" in capsys.readouterr().out
    assert main(["data", "verify", f"{bucket}/prepared"]) != 0
    assert "works on a local directory; copy" in capsys.readouterr().err


def test_places_that_cannot_be_read(bucket: UPath, tmp_path: Path) -> None:
    def given(path: str, **changes: object) -> None:
        prepare(criteo_config(tmp_path / "x", path=path, **changes), silent)

    with pytest.raises(ConfigError, match=r"nope://x/train.txt cannot be opened"):
        given("nope://x/train.txt")
    with pytest.raises(DataError, match=r"memory://.*/train.txt does not exist"):
        given(str(bucket / "train.txt"))
    with pytest.raises(ConfigError, match=r"data.out=memory://x must be a local directory"):
        given(str(bucket), out="memory://x")
    with pytest.raises(DataError, match=r"is not a prepared directory"):
        open_dataset(PreparedData(path=str(bucket)), 0, silent)
