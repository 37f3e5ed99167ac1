"""Lines about settings that are right and yet may not do what their user thinks. Cases 106 and 110."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recpipe.cli.main import main
from recpipe.embedding.placement import PlacementOptions, place_tables
from recpipe.specs import TableSpec
from recpipe.train.config import TrainConfig
from recpipe.train.remarks import remarks

SPECS = [TableSpec("t_a", "a", 1000, 16), TableSpec("t_b", "b", 10, 16)]


def said(chosen: str = "1f1b", num_valid: int = 9, pooled: bool = False, **settings: Any) -> list[str]:
    cfg = OmegaConf.structured(TrainConfig)
    for key, value in settings.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    options = PlacementOptions(exchange_per_table={"t_a": "pooled"} if pooled else {})
    return list(remarks(cfg, chosen, place_tables(SPECS, 2, options), num_valid))


def test_cyclic_says_what_a_run_makes_of_it() -> None:
    """Case 110."""
    (line,) = said("cyclic", schedule__name="cyclic")
    assert "executed as plain data parallel for now" in line
    assert said() == []


def test_auto_says_what_it_has_chosen() -> None:
    assert said("zb_h1", schedule__name="auto") == ["schedule=auto: runs zb_h1"]


def test_mixed_tables_say_which_setting_passes_some_by() -> None:
    """Case 106: said where tables are mixed."""
    lines = said(pooled=True, schedule__embedding="spread", exchange__wire_dtype="bfloat16")
    assert [line.split("=")[0] for line in lines] == ["schedule.embedding", "exchange.wire_dtype"]
    assert all("no effect on 1 of 2 tables" in line for line in lines)
    assert said(pooled=True, schedule__embedding="route") == []


def test_early_stopping_without_validation_rows_is_said() -> None:
    assert "no validation rows" in said(num_valid=0, early_stopping__patience=2)[0]


def test_simulating_cyclic_says_what_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 110."""
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "schedule=cyclic", "schedule.microbatches=4"]) == 0
    assert "in a run schedule=cyclic is executed as plain data parallel for now" in capsys.readouterr().out
