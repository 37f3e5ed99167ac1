"""Every number that can be set has a range, and a number outside of it is refused by its name before anything is opened."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module

import pytest

from recpipe.bounds import bound_of, check_bounds
from recpipe.cli.commands import COMMANDS
from recpipe.cli.main import main
from recpipe.data.config import SCHEMAS as DATA
from recpipe.errors import ConfigError
from recpipe.model.config import SCHEMAS as MODELS


def numeric_fields(record: type, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, type) of every field that holds numbers, alone or in lists and mappings."""
    for name, kind in typing.get_type_hints(record).items():
        if is_dataclass(kind):
            yield from numeric_fields(kind, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif typing.get_origin(kind) is dict and is_dataclass(inner := typing.get_args(kind)[1]):
            yield from numeric_fields(inner, f"{prefix}{name}.any.")
        elif any(part in str(kind).replace("'", " ") for part in ("int", "float")) and "Constraint" not in str(kind):
            yield f"{prefix}{name}{'.any' if typing.get_origin(kind) is dict else ''}", kind


def all_numeric_fields() -> dict[str, object]:
    records = [(module.SCHEMA, "") for name in COMMANDS if hasattr(module := import_module(f"recpipe.cli.{name}"), "SCHEMA")]
    records += [(record, "data.") for record in DATA.values()] + [(record, "model.") for record in MODELS.values()]
    return {name: kind for record, prefix in records for name, kind in numeric_fields(record, prefix)}


def test_every_numeric_setting_of_every_command_has_a_range() -> None:
    """Case 166."""
    found = all_numeric_fields()
    assert len(found) > 120
    without = sorted(name for name in found if bound_of(name) is None)
    assert not without, f"give these a range in recpipe/bounds.py: {', '.join(without)}"


def test_the_walk_over_settings_finds_a_number_without_a_range() -> None:
    assert bound_of("launch.threds") is None
    assert {"launch.threads", "tables.pins.any", "planner.constraints.any.ranks"} <= set(all_numeric_fields())


@pytest.mark.parametrize("value", [math.nan, -2, -math.inf])
def test_nan_and_negative_numbers_are_refused_for_every_setting(value: float) -> None:
    """Case 166; the one setting that may be negative is the stand-in of a missing value."""
    for name in all_numeric_fields():
        if name == "data.dense_missing" and value == -2:
            continue
        nested: dict[str, object] = {name.rpartition(".")[2]: value}
        for part in reversed(name.split(".")[:-1]):
            nested = {part: nested}
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            check_bounds(nested)


def test_defaults_of_every_command_are_within_their_ranges() -> None:
    for record in (*DATA.values(), *MODELS.values()):
        group = "data" if record in DATA.values() else "model"
        check_bounds({group: {one.name: getattr(record(), one.name) for one in fields(record)}})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "launch.threads=0"], "launch.threads=0: must be at least 1"),
        (["train", "launch.max_restarts=-1"], "launch.max_restarts=-1: must be at least 0"),
        (["train", "log.window_rows=0"], "log.window_rows=0: must be at least 1"),
        (["train", "optimizer.table.eps=nan"], "optimizer.table.eps=nan: must be a number, not NaN"),
        (["train", "optimizer.dense.learning_rate=inf"], "optimizer.dense.learning_rate=inf: must be at most 1e+30"),
        (["train", "checkpoint.every_minutes=-0.5"], "checkpoint.every_minutes=-0.5: must be at least 0"),
        (["train", "data.base_rate=1"], "data.base_rate=1.0: must be below 1"),
        (["train", "schedule.microbatches=1000000000"], "schedule.microbatches=1000000000: must be at most 65,536"),
        (["simulate", "mesh.stages=2000"], "mesh.stages=2000: must be at most 1,024"),
        (["simulate", "steps=1000000"], "steps=1000000: must be at most 100,000"),
        (["verify", "tolerance=nan"], "tolerance=nan: must be a number, not NaN"),
        (["eval", "checkpoint=x", "launch.threads=0"], "launch.threads=0: must be at least 1"),
        (["score", "checkpoint=x", "input=x", "output=y", "test_batch_size=0"], "test_batch_size=0: must be at least 1"),
        (["profile", "launch.timeout_seconds=0"], "launch.timeout_seconds=0: must be at least 1"),
        (["plan", "planner.seconds=-1"], "planner.seconds=-1.0: must be positive"),
        (["plan", "workload.skew=[nan]"], "workload.skew=[nan]: each must be a number, not NaN"),
        (["bench", "compare", "warmup=-1"], "warmup=-1: must be at least 0"),
        (["data", "prepare", "data=criteo", "source=x", "data.threads=-1"], "data.threads=-1: must be at least 0"),
        (["checkpoint", "convert", "x", "out=y", "parts=0"], "parts=0: must be at least 1"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_before_any_work(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 166, by command."""
    assert main(arguments) == 2
    assert f"error: {said}" in capsys.readouterr().err
