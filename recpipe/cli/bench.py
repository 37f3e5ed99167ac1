"""``recpipe bench``: recpipe beside TorchRec, how much of the exchange is hidden, and where a step's time goes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.bench.settings import BenchConfig
from recpipe.errors import ConfigError, nearest
from recpipe.train.leaving import signals_raise

CONFIG = "bench"
HELP = "Measure whole steps: recpipe bench compare | overlap | profile | predict | plan, on links of a chosen rate."
SCHEMA = BenchConfig

logger = logging.getLogger(__name__)


def main(cfg: Any) -> int:
    """Runs one action. Returns the exit code."""
    actions: dict[str, Callable[[BenchConfig, Path], None]] = {
        "compare": _compare,
        "overlap": _overlap,
        "profile": _profile,
        "predict": _predict,
        "plan": _plan,
    }
    if cfg.action not in actions:
        asked = f"{cfg.action}: no such action" if cfg.action else "recpipe bench needs an action"
        raise ConfigError(f"{asked}; {nearest(cfg.action, actions)}")
    config: Any = OmegaConf.to_object(cfg)
    folder = Path(config.out or f"runs/bench/{config.action}-{datetime.now():%Y%m%d-%H%M%S}")
    folder.mkdir(parents=True, exist_ok=True)
    with signals_raise():
        actions[config.action](config, folder)
    return 0


def _compare(config: BenchConfig, folder: Path) -> None:
    from recpipe.bench.compare import compare
    from recpipe.bench.plot import plot
    from recpipe.bench.report import NOTES, records, text

    sections = []
    for section in compare(config):
        print(text(section), end="\n\n", flush=True)
        sections.append(section)
        _write(folder / "compare.json", config, records(sections))
    print(NOTES)
    drawn = " and compare.svg" if plot(sections, folder / "compare.svg") else ""
    print(f"wrote compare.json{drawn} to {folder}")


def _overlap(config: BenchConfig, folder: Path) -> None:
    from recpipe.bench.overlap import NOTES, header, line, overlap

    rows, above = [], ""
    for row in overlap(config):
        if header(row.workload, row.link) != above:
            above = header(row.workload, row.link)
            print(above)
        print(line(row), flush=True)
        rows.append(asdict(row))
        _write(folder / "overlap.json", config, rows)
    print(f"{NOTES}\nwrote overlap.json to {folder}")


def _predict(config: BenchConfig, folder: Path) -> None:
    from recpipe.bench.predict import HEADER, line, predict, summary

    rows = []
    print(HEADER)
    for row in predict(config):
        rows.append(row)
        print(line(row), flush=True)
        _write(folder / "predict.json", config, [asdict(one) | {"error": one.error} for one in rows])
    print(f"{summary(rows)}\nwrote predict.json to {folder}")


def _plan(config: BenchConfig, folder: Path) -> None:
    from recpipe.bench.planned import HEADER, Planned, lines, plans, summary

    found: list[Planned] = []
    print(HEADER)
    for rows in plans(config):
        found += rows
        print("\n".join(lines(rows)), flush=True)
        _write(folder / "plan.json", config, [asdict(row) for row in found])
    print(f"{summary(found)}\nwrote plan.json to {folder}")


def _profile(config: BenchConfig, folder: Path) -> None:
    from recpipe.bench.profiles import profiles

    found = []
    for one in profiles(config):
        print(one.text(), end="\n\n", flush=True)
        found.append(asdict(one))
        _write(folder / "profile.json", config, found)
    print(f"wrote profile.json to {folder}")


def _write(file: Path, config: BenchConfig, rows: list[dict[str, Any]]) -> None:
    file.write_text(json.dumps({"settings": asdict(config), "rows": rows}, indent=1))
