"""Memory before allocation: bytes of a rank beside what is free. Case 137."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from recpipe.cli.main import main
from recpipe.model import build_model
from recpipe.model.config import DcnV2Config
from recpipe.runtime.program import build_program
from recpipe.schedule.settings import CostSettings, ScheduleSettings
from recpipe.specs import Feature, Schema
from recpipe.train import free_memory, memory
from recpipe.train.config import TrainConfig

SMALL = [
    "train",
    "launch.nproc=1",
    "data.num_train=256",
    "data.num_valid=0",
    "data.num_test=0",
    "save_checkpoint=false",
]


class Alone:
    """The groups of a single rank."""

    rank, world = 0, 1

    def gather_objects(self, mine: Any) -> list[Any]:
        return [mine]


def check(rows: int, **settings: Any) -> None:
    cfg = TrainConfig()
    cfg.optimizer.table.name = "adagrad"
    for key, value in settings.items():
        setattr(cfg.launch, key, value)
    schema = Schema(3, (Feature("small", 10), Feature("big", rows)))
    model = build_model(DcnV2Config(), schema, device="meta")
    program = build_program(ScheduleSettings(microbatches=1, embedding="ahead"), CostSettings(), 1, 1)
    whole = (range(len(model.blocks)),)
    memory.check_memory(cfg, model, schema, program, whole, Alone())  # type: ignore[arg-type]


def test_a_table_of_two_to_the_33_ids_is_refused_before_it_is_made() -> None:
    """Case 137: one id of 2^33; nothing of the table is allocated."""
    with pytest.raises(memory.ConfigError) as error:
        check(2**33 + 1)
    said = str(error.value)
    for words in ("t_big", "largest id 8,589,934,592", "1.1 TB with its optimizer state", "is free", "data.hash_size",
                  "row_wise", "optimizer/table=rowwise_adagrad", "launch.check_memory=false"):  # fmt: skip
        assert words in said


def test_the_setting_overrules_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(2**33 + 1, check_memory=False)
    assert "cannot fit" in caplog.text


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_of_process", lambda: 1e6)
    with pytest.raises(memory.ConfigError, match="ulimit -v"):
        check(100_000)


def test_a_run_that_cannot_fit_makes_no_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faked small limit; the same run starts where there is room, and its first lines have the bytes of a rank."""
    from recpipe.train import setup

    def never(*args: Any) -> None:
        raise AssertionError("a table was made")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "free_of_machine", lambda: 1e5)
    with monkeypatch.context() as context:
        context.setattr(setup, "build_tables", never)
        assert main(SMALL) == 2
    assert "cannot fit: the 1 ranks of this machine need" in capsys.readouterr().err


def test_limits_of_control_groups_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version 2, a parent's smaller limit, page cache that can go; version 1."""
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (group / "a" / "b").mkdir(parents=True)
    (group / "memory" / "c").mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable:  9000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (group / "a" / "b" / "memory.max").write_text("max\n")
    (group / "a" / "b" / "memory.current").write_text("100\n")
    monkeypatch.setattr(free_memory, "_PROC", proc)
    monkeypatch.setattr(free_memory, "_CGROUP", group)
    assert free_memory.free_of_machine() == 9000 * 1024
    (group / "a" / "memory.max").write_text("5000\n")
    (group / "a" / "memory.current").write_text("1000\n")
    (group / "a" / "memory.stat").write_text("anon 1\ninactive_file 200\n")
    assert free_memory.free_of_machine() == 4200
    (proc / "self" / "cgroup").write_text("4:memory:/c\n")
    (group / "memory" / "c" / "memory.limit_in_bytes").write_text("3000\n")
    (group / "memory" / "c" / "memory.usage_in_bytes").write_text("1000\n")
    assert free_memory.free_of_machine() == 2000
