"""``recpipe bench predict``: steps as simulated from one profile of this machine beside steps as measured, link by link."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from omegaconf import OmegaConf

from recpipe.bench.compare import Measured, run_block
from recpipe.bench.links import NONE, Network, open_network
from recpipe.bench.ranks import Ranks
from recpipe.bench.settings import TORCHREC, BenchConfig, Contestant, Workload, parse_contestant, workloads
from recpipe.runtime.program import build_program
from recpipe.runtime.steady import predict as simulated
from recpipe.runtime.steady import steady
from recpipe.schedule.cost import Link
from recpipe.schedule.profile import Profile, from_json, profiled_cost
from recpipe.schedule.settings import CostSettings, ScheduleSettings

logger = logging.getLogger(__name__)
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
    for workload in workloads(config):
        profile = _profile(config, workload)
        for link in config.links:
            with open_network(link, config.ranks) as network:
                network.set_rate(link)
                wire = _link(config, workload, network)
                for contestant in contestants:
                    predicted = steady(
                        simulated(_program(contestant), profiled_cost(profile, _program(contestant), wire))
                    )
                    measured = _measure(config, network, workload, contestant, link)
                    yield Prediction(workload, link, contestant.name, predicted.step, measured)


def _profiled(config: BenchConfig) -> Contestant:
    return parse_contestant(_PROFILED.format(ranks=config.ranks), config.ranks)


def _profile(config: BenchConfig, workload: Workload) -> Profile:
    with open_network(NONE, config.ranks) as network, Ranks(_profiled(config), workload, network) as ranks:
        return from_json(ranks.ask("measure_profile")[0])


def _link(config: BenchConfig, workload: Workload, network: Network) -> Link:
    with Ranks(_profiled(config), workload, network) as ranks:
        found = ranks.ask("measure_link")[0]
        return Link(found["alpha"], found["bandwidth"])


def _program(contestant: Contestant):  # type: ignore[no-untyped-def]
    """The program that the contestant's trainer runs."""
    plain = {"schedule": {"microbatches": contestant.microbatches, "embedding": contestant.depth}}
    dotted = OmegaConf.from_dotlist([one for one in contestant.settings if one.startswith("schedule.")])
    chosen = OmegaConf.merge(OmegaConf.structured(ScheduleSettings), plain["schedule"], dotted.get("schedule", {}))
    return build_program(OmegaConf.to_object(chosen), CostSettings(), contestant.stages, contestant.replicas)  # type: ignore[arg-type]


def _measure(config: BenchConfig, network: Network, workload: Workload, contestant: Contestant, link: str) -> float:
    row = Measured(contestant, workload, link)
    with Ranks(contestant, workload, network) as ranks:
        run_block(config, ranks, network, Measured(contestant, workload, link))
        for _ in range(config.blocks):
            run_block(config, ranks, network, row)
    return 1000 * row.middle


def summary(rows: list[Prediction]) -> str:
    """The figure that counts: the median of the absolute errors."""
    errors = [abs(row.error) for row in rows]
    return f"{len(rows)} configurations, median error {median(errors):.1%}, largest {max(errors):.1%}"


def line(row: Prediction) -> str:
    """A row of the table."""
    where = "loopback" if row.link == NONE else row.link
    return f"| {where} | `{row.contestant}` | {row.predicted:.1f} | {row.measured:.1f} | {row.error:+.1%} |"


HEADER = "| link | configuration | predicted, ms | measured, ms | off by |\n|---|---|---|---|---|"
