"""Disks that fill up and places that cannot be written: one message, and nothing half-written taken for whole."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recpipe.cli.main import main
from recpipe.data.config import PreparedData
from recpipe.data.npy_export import export_days
from recpipe.data.npy_import import import_days
from recpipe.data.paths import copy_file
from recpipe.data.prepare.job import prepare
from recpipe.errors import DataError
from tests.data.lines import contents, criteo_config, criteo_lines, silent, write_lines


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for 100 kB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or mount(place, "size=100k"):
        pytest.skip("a small tmpfs needs the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def mount(place: Path, options: str) -> int:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)]).returncode


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the free space before the work."""
    monkeypatch.setattr("recpipe.data.prepare.job.check_space", lambda *given: None)


@pytest.mark.usefixtures("unchecked")
def test_disk_that_fills_up_in_any_phase_leaves_no_result_and_with_room_it_goes_on(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 40_000)
    path = write_lines(tmp_path / "train.txt", criteo_lines(1500))
    config = criteo_config(path, out=str(small / "out"), rows_per_shard=500)
    whole = contents(prepare(criteo_config(path, out=str(tmp_path / "whole"), rows_per_shard=500), silent))
    phases = set()
    for kilobytes in range(100, 2000, 40):
        subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(small)], check=True)
        reports: list[str] = []
        try:
            out = prepare(config, silent, lambda progress, reports=reports: reports.append(progress.phase))
        except DataError as error:
            assert "No space left on device" in str(error) and str(small) in str(error)
            assert not (small / "out").exists()
            phases.add(len(set(reports)))
        else:
            break
    assert contents(out) == whole
    assert len(phases) >= 2


def test_too_little_room_is_said_before_the_work(small: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(3000))
    with pytest.raises(DataError, match=r"0\.00 GB free, about 0\.00 GB are needed"):
        prepare(criteo_config(path, out=str(small / "out")), silent)
    assert not list(small.rglob("*.arrow"))


def test_full_disk_stops_export_import_and_copies(small: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(2000))
    out = prepare(criteo_config(path), silent)
    days = export_days(out, tmp_path / "days", PreparedData())
    for action in (
        lambda: export_days(out, small / "new", PreparedData()),
        lambda: import_days(days, small / "new"),
        lambda: copy_file(path, small / "new", ""),
    ):
        with pytest.raises(DataError, match="No space left on device"):
            action()
        assert not (small / "new").exists()
        shutil.rmtree(small / "new.partial", ignore_errors=True)


@pytest.mark.parametrize("action", ["prepare", "export", "import"])
def test_read_only_output(tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(60))
    ready = prepare(criteo_config(path), silent)
    days = export_days(ready, tmp_path / "days", PreparedData())
    place = tmp_path / "fixed"
    place.mkdir()
    mounted = os.geteuid() == 0
    if mounted and mount(place, "ro"):
        pytest.skip("a read-only place needs the right to mount, or not to be root")
    place.chmod(0o555) if not mounted else None
    words = {
        "prepare": [f"source={path}", f"out={place / 'out'}"],
        "export": [str(ready), f"npy_dir={place / 'out'}"],
        "import": [str(place / "out"), f"npy_dir={days}"],
    }
    try:
        assert main(["data", action, *words[action]]) != 0
        error = capsys.readouterr().err
        assert error.startswith("error: cannot write") and str(place) in error and error.count("\n") == 1
        assert "Read-only file system" in error or "Permission denied" in error
    finally:
        subprocess.run(["umount", str(place)], check=True) if mounted else place.chmod(0o755)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.txt", criteo_lines(60))
    (tmp_path / "file").write_text("in the way of a directory")
    with pytest.raises(DataError, match=r"cannot write .*file"):
        prepare(criteo_config(path, out=str(tmp_path / "file" / "out")), silent)
    out = prepare(criteo_config(path), silent)
    with pytest.raises(DataError, match=r"file is in use; choose another npy_dir"):
        export_days(out, tmp_path / "file", PreparedData())


def test_an_export_that_stops_leaves_no_days(tmp_path: Path) -> None:
    """Rows without labels are found in the last shard; the days before it are not taken for an export."""
    lines = criteo_lines(300)
    unlabelled = write_lines(tmp_path / "test.txt", criteo_lines(40, labelled=False))
    out = prepare(criteo_config(write_lines(tmp_path / "train.txt", lines), test_path=str(unlabelled)), silent)
    with pytest.raises(DataError, match="rows without labels"):
        export_days(out, tmp_path / "days", PreparedData())
    assert not (tmp_path / "days").exists()
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "days").mkdir()
    (tmp_path / "x.npy").rename(tmp_path / "days" / "day_0_dense.npy")
    with pytest.raises(DataError, match="days is in use"):
        export_days(out, tmp_path / "days", PreparedData())
