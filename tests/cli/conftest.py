"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recpipe.cli.train


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `recpipe train` would run with; nothing is trained."""
    seen: list[Any] = []

    def keep(cfg: Any) -> int:
        seen.append(cfg)
        return 0

    monkeypatch.setattr(recpipe.cli.train, "main", keep)
    monkeypatch.chdir(tmp_path)
    return seen
