"""``recpipe simulate``: build, check and simulate a schedule; print it, draw it, write it down."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.errors import ScheduleError
from recpipe.schedule.assemble import assemble, microbatch_ratio
from recpipe.schedule.auto import Candidate, Scope, Setting, choose
from recpipe.schedule.check import Proof, check
from recpipe.schedule.cost import Cost
from recpipe.schedule.draw.svg import svg
from recpipe.schedule.draw.terminal import gantt
from recpipe.schedule.ir import Program
from recpipe.schedule.metrics import Metrics, measure
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.report import candidates_table, compute_order, row, row_header, summary
from recpipe.schedule.settings import CostSettings, ScheduleSettings, cost_of, to_cost, to_request
from recpipe.schedule.simulate import simulate
from recpipe.schedule.text import format_program
from recpipe.schedule.timeline import Timeline, chrome_trace

CONFIG = "simulate"
HELP = "Simulate, draw and compare pipeline schedules; needs no GPU."


@dataclass
class MeshSettings:
    """Group `mesh`: ranks of one pipeline, and data-parallel copies of it."""

    stages: int = 4
    replicas: int = 1


@dataclass
class SimulateConfig:
    """Root of ``conf/simulate.yaml``."""

    mesh: MeshSettings = field(default_factory=MeshSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    cost: CostSettings = field(default_factory=CostSettings)
    steps: int = 1
    width: int = 0


SCHEMA = SimulateConfig


@dataclass(frozen=True)
class Result:
    """A program with everything the report needs."""

    program: Program
    proof: Proof
    timeline: Timeline
    metrics: Metrics
    candidates: list[Candidate]


def main(cfg: Any) -> int:
    """Simulate what `cfg` describes. In a sweep print one row a job, else the whole report. Returns the exit code."""
    config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SimulateConfig), cfg))
    job = _sweep_job()
    if job is None:
        result = run(config)
        _print_report(config, result)
        folder = _output_dir()
        _write(folder, config, result)
        print(f"\nwrote program.txt, simulation.json, timeline.json and gantt.svg to {folder}")
        return 0
    return _sweep_row(config, job)


def run(config: SimulateConfig) -> Result:
    """Build, check and simulate. Raises ScheduleError or ConfigError."""
    cost = to_cost(config.cost)
    program, candidates = _program(config, cost)
    ratio = microbatch_ratio(program, to_request(config.schedule, config.mesh.stages, cost))
    scaled = cost_of(config.cost, program, ratio)
    proof = check(program, config.schedule.memory)
    timeline = simulate(program, scaled, config.cost.unit)
    return Result(program, proof, timeline, measure(program, timeline, scaled), candidates)


def _program(config: SimulateConfig, cost: Cost) -> tuple[Program, list[Candidate]]:
    settings = config.schedule
    for name, value in (("mesh.stages", config.mesh.stages), ("mesh.replicas", config.mesh.replicas)):
        if value < 1:
            raise ScheduleError(f"{name}={value}: must be at least 1.")
    if config.steps < 1:
        raise ScheduleError(f"steps={config.steps}: must be at least 1.")
    request = to_request(settings, config.mesh.stages, cost)
    setting = Setting(
        Exchange(settings.embedding, settings.buffers), config.steps, config.mesh.replicas, settings.fill
    )
    if settings.name != "auto":
        return assemble(settings.name, request, setting.exchange, setting.steps, setting.lanes, setting.fill), []
    scope = Scope((), tuple(settings.try_microbatches), tuple(settings.try_chunks), settings.copies)
    return choose(request, setting, scope)


def _print_report(config: SimulateConfig, result: Result) -> None:
    width = config.width or shutil.get_terminal_size((120, 40)).columns
    if result.candidates:
        print(candidates_table(result.candidates, config.cost.unit), end="\n\n")
    print(compute_order(result.program), end="\n\n")
    print(gantt(result.timeline, width, sys.stdout.isatty()), end="\n\n")
    print(summary(result.program, result.proof, result.metrics, config.cost.unit))


def _write(folder: Path, config: SimulateConfig, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{result.program.name}, {result.metrics.makespan:g} {config.cost.unit}"
    trace = chrome_trace(result.timeline, config.cost.microseconds)
    (folder / "program.txt").write_text(format_program(result.program))
    (folder / "simulation.json").write_text(json.dumps(result.metrics.as_dict(), indent=2))
    (folder / "timeline.json").write_text(json.dumps(trace))
    (folder / "gantt.svg").write_text(svg(result.timeline, title))


def _sweep_row(config: SimulateConfig, job: int) -> int:
    """One row of the comparison; a schedule that refuses is a row too, not the end of the sweep."""
    folder = _output_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = run(config)
        line = row(config.schedule.name, result.program, result.metrics, "")
        _write(folder, config, result)
    except ScheduleError as error:
        line = row(config.schedule.name, None, None, str(error))
    lines = [line] if job else [row_header(config.cost.unit), line]
    with (folder.parent / "comparison.txt").open("a" if job else "w") as table:
        table.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


def _hydra() -> Any:
    """Hydra's own configuration, None outside a Hydra run."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get() if HydraConfig.initialized() else None


def _sweep_job() -> int | None:
    """Number of this job in a sweep, None outside one."""
    hydra = _hydra()
    return int(hydra.job.num) if hydra is not None and hydra.mode is not None and hydra.mode.name == "MULTIRUN" else None


def _output_dir() -> Path:
    hydra = _hydra()
    return Path(hydra.runtime.output_dir if hydra is not None else ".")
