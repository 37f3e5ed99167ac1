"""Overwriting removes what a run wrote, and nothing else (case 166)."""

from __future__ import annotations

from pathlib import Path

import pytest

from recpipe.errors import ConfigError
from recpipe.train.check import require_free
from recpipe.train.overwriting import clear, mark, require_continuable

SETTINGS = "model:\n  name: dlrm\ndata:\n  name: synthetic\noptimizer: {}\nrun:\n  dir: ''\n"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def strangers(folder: Path) -> None:
    """The files of another program, under names that a run writes, too."""
    (folder / "checkpoints" / "final").mkdir(parents=True)
    for name in ("checkpoints/final/weights.pt", "config.yaml", "metrics.jsonl", "plan.json"):
        (folder / name).write_text("lr: 1\n")


def test_directory_without_a_run_is_not_overwritten(tmp_path: Path) -> None:
    """Case 166: names alone, such as config.yaml and checkpoints, make no run."""
    strangers(tmp_path)
    with pytest.raises(ConfigError, match="no run of recpipe wrote them"):
        require_free(tmp_path, overwrite=True)


@pytest.mark.parametrize("place", ["cwd", "parent", "home", "above_home", "git", "mount"])
def test_places_that_are_never_overwritten(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 166: refused even where a run left its marker by mistake."""
    inner, elsewhere = tmp_path / "run" / "inner", tmp_path / "elsewhere"
    for folder in (inner, elsewhere):
        folder.mkdir(parents=True)
    run = tmp_path / "run"
    mark(run)
    (run / "metrics.jsonl").touch()
    monkeypatch.chdir({"cwd": run, "parent": inner}.get(place, elsewhere))
    monkeypatch.setenv("HOME", str({"home": run, "above_home": inner}.get(place, elsewhere)))
    if place == "git":
        (run / ".git").touch()
    if place == "mount":
        monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == run)
    words = {"git": "git checkout", "mount": "mount point", "home": "home", "above_home": "home"}
    with pytest.raises(ConfigError, match=words.get(place, "working directory")):
        require_free(run, overwrite=True)


def test_root_is_never_overwritten() -> None:
    """Case 166: only asked, nothing is removed by asking."""
    with pytest.raises(ConfigError, match=r"run\.dir=/ "):
        require_free(Path("/"), overwrite=True)


@pytest.mark.parametrize("others", [{"config.yaml": SETTINGS, "plan.json": "{}"}, {"verify.json": "{}"}])
def test_runs_of_versions_without_a_marker_are_overwritten(others: dict[str, str], tmp_path: Path) -> None:
    """Case 166: known by the files that only a run writes."""
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    require_free(tmp_path, overwrite=True)
    clear(tmp_path)
    assert files(tmp_path) == []


def test_auto_resume_takes_nothing_from_a_directory_without_a_run(tmp_path: Path) -> None:
    """Case 166: without a checkpoint of ours, resume=auto must not clean up there."""
    strangers(tmp_path)
    with pytest.raises(ConfigError, match="no run of recpipe wrote them"):
        require_continuable(tmp_path, 0)
    require_continuable(tmp_path, 5)
    mark(tmp_path)
    require_continuable(tmp_path, 0)


def test_files_that_no_run_writes_stay_among_checkpoints(tmp_path: Path) -> None:
    """Case 166: also behind a link, which stays as well."""
    mark(tmp_path)
    disk = tmp_path / "disk"
    for name in ("step-4", ".step-8.unfinished", "mine"):
        (disk / name).mkdir(parents=True)
        (disk / name / "data").touch()
    (disk / "notes.txt").touch()
    (tmp_path / "checkpoints").symlink_to(disk)
    clear(tmp_path)
    assert files(disk) == ["mine/data", "notes.txt"]
    assert (tmp_path / "checkpoints").is_symlink()
