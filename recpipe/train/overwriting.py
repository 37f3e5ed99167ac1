"""Overwriting a run directory: removes only what a run wrote there, and refuses directories that are no run's."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from recpipe.errors import ConfigError

# As in `recpipe.data.encoding`, which imports more than a launcher needs.
FOLDER = "encoding"
# Every run writes it first, into a directory that held no files or that was another run's.
MARKER = ".recpipe-run"
# What failures of an earlier attempt leave before there is a checkpoint.
MAY_STAY = ("failures", MARKER)
_FILES = ("metrics.jsonl", "summary.json", ".summary.json", "plan.json", "planned.json", "config.yaml", "verify.json")
_CHECKPOINT = re.compile(r"\..+|step-\d+|best-\d+|final")
# Top-level groups of the settings of every run since the first version.
_GROUPS = ("model", "data", "optimizer", "run")


def mark(folder: Path) -> None:
    """Notes that a run of recpipe writes into a directory."""
    (folder / MARKER).touch()


def require_ours(folder: Path) -> None:
    """Raises ConfigError where `run.overwrite=true` could remove what no run wrote."""
    reason = _place(folder.resolve()) or (None if is_run(folder) else "holds files, and no run of recpipe wrote them")
    if reason:
        raise ConfigError(
            f"run.dir={folder} {reason}: run.overwrite=true replaces only what an earlier run wrote; "
            "choose a directory that is empty, or that of a run"
        )


def require_continuable(folder: Path, step: int) -> None:
    """Raises ConfigError where a run would begin at step 0 by ``resume=auto`` among files that no run wrote."""
    held = any(path.name not in MAY_STAY for path in folder.iterdir())
    if step == 0 and held and not is_run(folder):
        raise ConfigError(
            f"run.dir={folder} holds files, no run of recpipe wrote them, and no checkpoint is among them to resume from; "
            "choose a directory that is empty, or that of a run"
        )


def is_run(folder: Path) -> bool:
    """Whether a run wrote into a directory.

    Its marker says so. Runs of versions without a marker are known by the settings in ``config.yaml`` beside
    ``plan.json``, those of ``recpipe verify`` by ``verify.json`` alone.
    """
    if (folder / MARKER).is_file():
        return True
    names = {path.name for path in folder.iterdir()}
    if names - set(MAY_STAY) == {"verify.json"}:
        return True
    return {"config.yaml", "plan.json"} <= names and _is_settings(folder / "config.yaml")


def _is_settings(file: Path) -> bool:
    """Whether a file has the groups that the settings of every run have."""
    try:
        found = set(re.findall(r"^(\w+):", file.read_text(), re.MULTILINE))
    except (OSError, UnicodeDecodeError):
        return False
    return found.issuperset(_GROUPS)


def _place(folder: Path) -> str | None:
    """Why a directory is none to overwrite whatever it holds; None: no reason."""
    here, home = Path.cwd().resolve(), Path(os.path.expanduser("~")).resolve()
    if folder in (here, *here.parents):
        return "is the working directory or holds it"
    if folder in (home, *home.parents):
        return "is the home directory or holds it"
    if (folder / ".git").exists():
        return "is a git checkout"
    return "is a mount point" if os.path.ismount(folder) else None


def clear(folder: Path) -> None:
    """Removes what an earlier run left under the names that this one will write; other files stay."""
    checkpoints = folder / "checkpoints"
    for path in list(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        if _CHECKPOINT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    if checkpoints.is_dir() and not checkpoints.is_symlink() and not any(checkpoints.iterdir()):
        checkpoints.rmdir()
    if not (folder / FOLDER).is_symlink():
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
