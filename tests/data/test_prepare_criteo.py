"""From Criteo text to shards: equal to an independent pandas path, whatever the compression, cuts or interruptions."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recpipe.data import open_dataset
from recpipe.data.config import CriteoData, PreparedData
from recpipe.data.prepare import phases
from recpipe.data.prepare.job import prepare
from recpipe.data.verify import verify_directory
from recpipe.errors import DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines

NAMES = ["label", *[f"int_{i}" for i in range(13)], *[f"cat_{i}" for i in range(26)]]


def arrays(directory: Path, split: str) -> dict[str, np.ndarray]:
    shards = [s for s in json.loads((directory / "manifest.json").read_text())["shards"] if s["split"] == split]
    kinds = shards[0]["files"]
    return {kind: np.concatenate([np.load(directory / s["files"][kind]["name"]) for s in shards]) for kind in kinds}


def by_pandas(train: list[bytes], rows: list[bytes], threshold: int) -> dict[str, np.ndarray]:
    """Labels, dense values and ids of `rows` with the vocabulary of `train`, by the plain route."""
    frames = [
        pd.read_csv(io.BytesIO(b"\n".join(part)), sep="\t", names=NAMES, dtype=dict.fromkeys(NAMES[14:], str))
        for part in (train, rows)
    ]
    dense = np.log(np.maximum(frames[1][NAMES[1:14]].fillna(0).to_numpy(float), -2) + 3).astype(np.float32)
    ids = []
    for name in NAMES[14:]:
        counts = frames[0][name].value_counts()
        order = sorted(((-n, v) for v, n in counts.items() if n >= threshold))
        known = {value: number + 2 for number, (_, value) in enumerate(order)}
        ids.append([0 if pd.isna(value) else known.get(value, 1) for value in frames[1][name]])
    return {"labels": frames[1]["label"].to_numpy(np.float32), "dense": dense, "ids": np.array(ids).T}


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return criteo_lines(650)


@pytest.mark.parametrize("threshold", [1, 3])
def test_every_value_equals_the_pandas_path(tmp_path: Path, lines: list[bytes], threshold: int) -> None:
    train, valid = lines[:500], lines[500:]
    config = criteo_config(
        write_lines(tmp_path / "train.txt", train),
        valid_path=str(write_lines(tmp_path / "valid.txt", valid)),
        frequency_threshold=threshold,
    )
    out = prepare(config, silent)
    for split, rows in (("train", train), ("valid", valid)):
        found, wanted = arrays(out, split), by_pandas(train, rows, threshold)
        for kind in wanted:
            assert (found[kind] == wanted[kind]).all(), kind
    assert verify_directory(out) == []


def test_compression_and_cuts_of_the_input_do_not_show(tmp_path: Path, lines: list[bytes]) -> None:
    results = []
    for name, parts in (("a.txt", 1), ("b.txt.gz", 1), ("c.txt.zst", 1), ("d.txt", 2), ("e.txt.gz", 7), ("f.txt", 1)):
        folder = tmp_path / name.split(".")[0]
        folder.mkdir()
        for number, part in enumerate(np.array_split(np.arange(len(lines)), parts)):
            write_lines(folder / f"part_{number}{name[1:]}", [lines[n] for n in part])
        results.append(contents(prepare(criteo_config(folder, dense_transform="standardize"), silent)))
    assert all(result == results[0] for result in results)
    assert len(results[0]) > 30


def test_small_chunks_and_threads_do_not_show(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "train.txt", lines)
    one = contents(prepare(criteo_config(path, threads=1, out=str(tmp_path / "one")), silent))
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 4000)
    assert contents(prepare(criteo_config(path, threads=4, out=str(tmp_path / "four")), silent)) == one


def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of any piece of work; then the same command again."""
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 4000)
    path = write_lines(tmp_path / "train.txt.gz", lines[:250])
    whole = contents(prepare(criteo_config(path, out=str(tmp_path / "whole")), silent))
    rng, replace = random.Random(0), os.replace
    for attempt in range(20):
        left = [rng.randrange(1, 60)]

        def failing(source: object, target: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(5, "stopped here")
            replace(source, target)  # type: ignore[arg-type]

        config = criteo_config(path, out=str(tmp_path / f"try{attempt}"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            try:
                prepare(config, silent)
            except DataError:
                assert not (tmp_path / f"try{attempt}").exists()
        assert contents(prepare(config, silent)) == whole


def test_killed_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in another process; what was parsed before is not parsed again."""
    path = write_lines(tmp_path / "train.txt", criteo_lines(3000))
    out = tmp_path / "out"
    script = (
        "import recpipe.data.prepare.job as job, recpipe.data.prepare.phases as phases, time\n"
        "from recpipe.data.config import CriteoData\n"
        "job.chunk_size = lambda limit, threads: 20000\n"
        "write = phases.write_unit\n"
        "phases.write_unit = lambda *given: (write(*given), time.sleep(0.05))\n"
        f"job.prepare(CriteoData(path={str(path)!r}, out={str(out)!r}, threads=1, frequency_threshold=2), print)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    units = tmp_path / "out.partial" / "work" / "raw" / "0000"
    for _ in range(2000):
        if units.is_dir() and len(list(units.glob("*.arrow"))) >= 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    before = {file: file.stat().st_mtime_ns for file in units.glob("*.arrow")}
    assert len(before) >= 5
    seen: list[bool] = []
    write = phases.write_unit
    try:
        phases.write_unit = lambda path, raw: seen.append(path in before) or write(path, raw)  # type: ignore[func-returns-value]
        prepare(CriteoData(path=str(path), out=str(out), threads=1, frequency_threshold=2), silent)
    finally:
        phases.write_unit = write
    assert seen and not any(seen)
    again = CriteoData(path=str(path), out=str(tmp_path / "fresh"), threads=1, frequency_threshold=2)
    assert contents(out) == contents(prepare(again, silent))


def test_second_time_nothing_is_done(tmp_path: Path, lines: list[bytes]) -> None:
    path = write_lines(tmp_path / "train.txt", lines)
    said: list[str] = []
    first = prepare(criteo_config(path), said.append)
    count = len(said)
    assert prepare(criteo_config(path), said.append) == first
    assert len(said) == count
    write_lines(path, lines[:600])
    assert prepare(criteo_config(path), silent) != first


def test_held_out_rows_are_no_training_rows(tmp_path: Path) -> None:
    """Case 14: every row in one split, shares as asked, whatever the run's seed."""
    lines = criteo_lines(2000)
    path = write_lines(tmp_path / "train.txt", lines)
    data = open_dataset(criteo_config(path, valid_fraction=0.2, test_fraction=0.1), seed=1, log=silent)
    rows = {split: data.num_rows(split) for split in ("train", "valid", "test")}
    assert sum(rows.values()) == 2000
    assert abs(rows["valid"] - 400) < 60 and abs(rows["test"] - 200) < 50
    again = open_dataset(criteo_config(path, valid_fraction=0.2, test_fraction=0.1), seed=2, log=silent)
    assert again.batch("valid", 0, 0, 50).ids_N.tolist() == data.batch("valid", 0, 0, 50).ids_N.tolist()
    assert again.batch("train", 0, 0, 50).ids_N.tolist() != data.batch("train", 0, 0, 50).ids_N.tolist()


def test_split_by_days_halves_the_last_one(tmp_path: Path, lines: list[bytes]) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    for day in (2, 9, 10):
        write_lines(folder / f"day_{day}.gz", lines[day * 20 : day * 20 + (21 if day == 10 else 20)])
    out = prepare(criteo_config(folder, split="days"), silent)
    halves = lines[200:221]
    train = lines[40:60] + lines[180:200]
    for split, rows in (("train", train), ("valid", halves[:11]), ("test", halves[11:])):
        assert (arrays(out, split)["ids"] == by_pandas(train, rows, 2)["ids"]).all(), split


def test_unlabelled_rows_are_refused_for_training_and_fine_for_scoring(tmp_path: Path, lines: list[bytes]) -> None:
    """Case 1."""
    path = write_lines(tmp_path / "test.txt", criteo_lines(40, labelled=False))
    with pytest.raises(DataError, match=r"test.txt has no labels \(39 fields a line.*data.test_path"):
        prepare(criteo_config(path), silent)
    config = criteo_config(write_lines(tmp_path / "train.txt", lines), test_path=str(path))
    batch = open_dataset(config, seed=0, log=silent).batch("test", 0, 0, 40)
    assert batch.num_rows == 40 and bool(batch.labels_B.isnan().all())


def test_hashed_ids_need_no_vocabulary(tmp_path: Path, lines: list[bytes]) -> None:
    path = write_lines(tmp_path / "train.txt", lines)
    data = open_dataset(criteo_config(path, vocabulary="hash", hash_size=50), seed=0, log=silent)
    assert {feature.num_ids for feature in data.schema.features} == {50}
    ids = data.batch("train", 0, 0, data.num_rows("train")).ids_N
    assert int(ids.max()) < 50 and (ids == 0).float().mean() > 0.05


def test_dense_ids_add_a_feature_for_each_integer(tmp_path: Path, lines: list[bytes]) -> None:
    path = write_lines(tmp_path / "train.txt", lines)
    data = open_dataset(criteo_config(path, dense_ids=True), seed=0, log=silent)
    assert data.schema.feature_names[26:28] == ("int_0_bucket", "int_1_bucket")
    assert data.schema.num_dense == 13 and len(data.schema.features) == 39


def test_manifest_tells_missing_rare_and_ranges(tmp_path: Path, lines: list[bytes]) -> None:
    """Cases 4 and 7."""
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines)), silent)
    manifest = json.loads((out / "manifest.json").read_text())
    assert min(column["min"] for column in manifest["dense"]) == -3
    assert all(0.1 < column["missing_share"] < 0.3 for column in manifest["dense"])
    ids = arrays(out, "valid")["ids"]
    for number, feature in enumerate(manifest["features"]):
        assert feature["missing"]["valid"] == (ids[:, number] == 0).sum()
        assert feature["rare"]["valid"] == (ids[:, number] == 1).sum()
    assert np.isfinite(arrays(out, "train")["dense"]).all()


def test_prepared_directory_opens_elsewhere(tmp_path: Path, lines: list[bytes]) -> None:
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines)), silent)
    moved = out.rename(tmp_path / "moved")
    data = open_dataset(PreparedData(path=str(moved)), seed=0, log=silent)
    assert "train.txt" in data.source and data.num_rows("train") > 400
    assert set(data.statistics()["features"]) == set(data.schema.feature_names)
