"""The run directory: chosen and made by rank 0 alone, known to all."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from recpipe.comm import Groups
from recpipe.errors import ConfigError


def make_run_dir(cfg: Any, command: str, groups: Groups) -> Path:
    """Makes the run directory; collective.

    Args:
        cfg: with `run`, `model`, `data`.
        command: first part of the default's name.

    Raises:
        ConfigError: the directory asked for holds files already.
    """
    name = _create(cfg, command) if groups.rank == 0 else ""
    return Path(groups.broadcast_text(name))


def _create(cfg: Any, command: str) -> str:
    if cfg.run.dir:
        folder = Path(cfg.run.dir)
        if folder.is_dir() and any(folder.iterdir()) and not cfg.run.overwrite:
            raise ConfigError(f"run.dir={folder} holds files; choose another directory or set run.overwrite=true")
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        return str(folder)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / command / f"{stamp}-{cfg.model.name}-{cfg.data.name}"
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return str(folder)
    raise ConfigError(f"{base}: a thousand runs in one second; set run.dir")


def _clear(folder: Path) -> None:
    """Removes what an earlier run left under the names that this one will write; other files stay."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in ("metrics.jsonl", "summary.json", "plan.json", "config.yaml", "verify.json"):
        (folder / name).unlink(missing_ok=True)
