"""``recpipe bench predict``: steps as simulated from one profile of this machine beside steps as measured, link by link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from recpipe.bench.compare import run_in_turn
from recpipe.bench.links import NONE, Network, open_network
from recpipe.bench.ranks import Ranks, on_links
from recpipe.bench.recpipe_side import train_config
from recpipe.bench.settings import TORCHREC, BenchConfig, Contestant, Workload, parse_contestant
from recpipe.runtime.program import build_program
from recpipe.runtime.steady import predict as simulated
from recpipe.runtime.steady import steady
from recpipe.schedule.ir import Program
from recpipe.schedule.profile import Profile, from_json, load_profile, profiled_cost
from recpipe.schedule.settings import CostSettings, ScheduleSettings
from recpipe.train.config_text import as_record

_PROFILED = "window:{ranks}x1:m1:ahead"


@dataclass(frozen=True)
class Prediction:
    """One configuration on one link, milliseconds of a step."""

    workload: Workload
    link: str
    contestant: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def predict(config: BenchConfig) -> Iterator[Prediction]:
    """Profiles the machine on loopback, then measures every contestant of recpipe on every link.

    Raises:
        ConfigError: settings that do not fit, or links that cannot be made.
        TrainingError: a rank died.
    """
    names = [name for name in config.contestants if name not in TORCHREC]
    contestants = [parse_contestant(name, config.ranks) for name in names]
    profiles: dict[Workload, Profile] = {}
    for workload, link, network in on_links(config):
        if workload not in profiles:
            profiles[workload] = profile_of(config, workload)
        profile = on_link(config, workload, network, profiles[workload])
        for contestant in contestants:
            program = _program(contestant, workload)
            predicted = steady(simulated(program, profiled_cost(profile, program)))
            measured = _measure(config, network, workload, contestant, link)
            yield Prediction(workload, link, contestant.name, predicted.step, measured)


def profiled_contestant(config: BenchConfig) -> Contestant:
    """The way of which meshes and schedules are varied to profile the machine."""
    return parse_contestant(_PROFILED.format(ranks=config.ranks), config.ranks)


def profile_of(config: BenchConfig, workload: Workload) -> Profile:
    """Profiles the machine, on loopback, or reads what was profiled before."""
    file = Path(config.profile) if config.profile else None
    if file is not None and file.exists():
        return load_profile(file)
    with open_network(NONE, config.ranks) as network, Ranks(profiled_contestant(config), workload, network) as ranks:
        found = from_json(ranks.ask("measure_profile")[0])
    if file is not None:
        found.save(file)
    return found


def on_link(config: BenchConfig, workload: Workload, network: Network, profile: Profile) -> Profile:
    """A profile with the links of `network` in the place of those that it was made on."""
    with Ranks(profiled_contestant(config), workload, network) as ranks:
        return replace(profile, **ranks.ask("measure_link")[0])


def _program(contestant: Contestant, workload: Workload) -> Program:
    """The program that the contestant's trainer runs."""
    cfg = train_config(contestant, workload)
    schedule, cost = as_record(ScheduleSettings, cfg.schedule), as_record(CostSettings, cfg.cost)
    return build_program(schedule, cost, contestant.stages, contestant.replicas)


def _measure(config: BenchConfig, network: Network, workload: Workload, contestant: Contestant, link: str) -> float:
    with Ranks(contestant, workload, network) as ranks:
        return 1000 * run_in_turn(config, [ranks], network, workload, link)[0].middle


def summary(rows: list[Prediction]) -> str:
    """The figure that counts: the median of the absolute errors."""
    errors = [abs(row.error) for row in rows]
    return f"{len(rows)} configurations, median error {median(errors):.1%}, largest {max(errors):.1%}"


def line(row: Prediction) -> str:
    """A row of the table."""
    where = "loopback" if row.link == NONE else row.link
    return f"| {where} | `{row.contestant}` | {row.predicted:.1f} | {row.measured:.1f} | {row.error:+.1%} |"


HEADER = "| link | configuration | predicted, ms | measured, ms | off by |\n|---|---|---|---|---|"
