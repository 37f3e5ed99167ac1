"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recpipe.cli.train
import recpipe.cli.verify


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `recpipe train` and `recpipe verify` would run with; nothing is run."""
    seen: list[Any] = []

    def keep(cfg: Any) -> int:
        seen.append(cfg)
        return 0

    for module in (recpipe.cli.train, recpipe.cli.verify):
        monkeypatch.setattr(module, "main", keep)
    monkeypatch.chdir(tmp_path)
    return seen
