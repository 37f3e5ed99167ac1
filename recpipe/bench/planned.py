"""``recpipe bench plan``: what the planner chooses on each link beside other ways, as predicted and as measured in one run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import psutil

from recpipe.bench.compare import Measured, run_in_turn
from recpipe.bench.links import NONE, Network
from recpipe.bench.predict import on_link, profile_of, profiled_contestant
from recpipe.bench.ranks import Ranks, on_links
from recpipe.bench.recpipe_side import train_config
from recpipe.bench.settings import TORCHREC, BenchConfig, Contestant, Workload, parse_contestant
from recpipe.data import open_dataset
from recpipe.embedding.placement import place_tables, placement_options
from recpipe.model import Model, build_model
from recpipe.planner.build import ranks_of, rate, to_plan
from recpipe.planner.designs import Choice, make_design, placement_of
from recpipe.planner.found import Rated
from recpipe.planner.inputs import problem_of
from recpipe.planner.loads import add_all
from recpipe.planner.measure import topology_here
from recpipe.planner.memory import cluster_of
from recpipe.planner.plan import overrides
from recpipe.planner.problem import Problem
from recpipe.planner.profiled import profiled
from recpipe.planner.report.facts import traffic_by_rank
from recpipe.planner.search import search
from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.schedule.profile import Profile
from recpipe.train.setup import cut_tower

logger = logging.getLogger(__name__)
PLAN = "the plan"
_TOGETHER = 5
"""Ways that live beside the plan at one time: each keeps all tables in memory."""


@dataclass(frozen=True)
class Planned:
    """One way to run on one link.

    Args:
        contestant: its name; `PLAN` is what the planner chose, which is `what`.
        predicted, measured: milliseconds of a step; `fastest` and `slowest` block.
        beside: milliseconds of the plan's step in the blocks that alternated with this one's.
        predicted_bytes, sent: by the rank that sends most, a step, as the planner and as the run counted them.
    """

    workload: Workload
    link: str
    contestant: str
    what: str
    predicted: float
    measured: float
    fastest: float
    slowest: float
    beside: float
    predicted_bytes: float
    sent: float

    @property
    def error(self) -> float:
        """Predicted over measured step, less 1."""
        return self.predicted / self.measured - 1

    @property
    def bytes_error(self) -> float:
        """The same of bytes."""
        return self.predicted_bytes / self.sent - 1


def plans(config: BenchConfig) -> Iterator[list[Planned]]:
    """Profiles the machine on loopback; then, on each link, plans, and measures plan and contestants in turn.

    Raises:
        ConfigError: settings that do not fit, or links that cannot be made.
        TrainingError: a rank died.
    """
    others = [parse_contestant(name, config.ranks) for name in config.contestants if name not in TORCHREC]
    profiles: dict[Workload, Profile] = {}
    for workload, link, network in on_links(config):
        if workload not in profiles:
            profiles[workload] = profile_of(config, workload)
        planner = Planner(config, workload, on_link(config, workload, network, profiles[workload]))
        chosen, rated = planner.choose()
        logger.info("%s: %s", link, rated.choice.label)
        plan, rows = Measured(chosen, workload, link), []
        for first in range(0, len(others), _TOGETHER):
            some = others[first : first + _TOGETHER]
            here, *found = _measure(config, [chosen, *some], workload, network, link)
            rows += [_row(planner.problem, planner.rate(row.contestant), row, here) for row in found]
            plan.seconds.extend(here.seconds)
            plan.counted = here.counted
        yield [_row(planner.problem, rated, plan, plan), *rows]


class Planner:
    """The planner on this machine, over a link of known speed.

    Args:
        profile: of the machine, with the link's latency and bandwidth.
    """

    def __init__(self, config: BenchConfig, workload: Workload, profile: Profile) -> None:
        self._workload = workload
        cfg = train_config(profiled_contestant(config), workload)
        memory = 0.8 * psutil.virtual_memory().total / config.ranks
        settings = PlannerSettings(measure="never")
        plain = problem_of(cfg, topology_here(1, config.ranks, memory), settings, WorkloadSettings())
        self._model: Model = build_model(cfg.model, open_dataset(cfg.data).schema, device="meta")
        layouts = place_tables(self._model.tables, config.ranks, placement_options(cfg))
        self.problem = profiled(plain, profile, layouts)

    def choose(self) -> tuple[Contestant, Rated]:
        """The plan as a contestant."""
        rated = search(self.problem).best
        plan = to_plan(self.problem, rated)
        settings = tuple(f"{key}={_flow(value)}" for key, value in overrides(plan).items())
        chosen = Contestant(PLAN, "window", plan.replicas, plan.stages, plan.microbatches, plan.embedding, settings)
        return chosen, rated

    def rate(self, contestant: Contestant) -> Rated:
        """What the planner predicts for a given way."""
        cfg = train_config(contestant, self._workload)
        choice = Choice(
            contestant.stages, cfg.schedule.name, contestant.microbatches, contestant.depth, cfg.schedule.chunks
        )
        cut = cut_tower(cfg.mesh.cuts, self._model, placement_of(choice).num_stages)
        layouts = place_tables(self._model.tables, self.problem.topology.world, placement_options(cfg))
        local = self.problem.topology.local_size
        placed = [(one.sharding, one.exchange, ranks_of(one, local)) for one in layouts]
        return rate(self.problem, make_design(self.problem, choice, cut), placed)


def _flow(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    return "[" + ",".join(map(_flow, value)) + "]" if isinstance(value, list) else str(value)


def _measure(
    config: BenchConfig, contestants: Sequence[Contestant], workload: Workload, network: Network, link: str
) -> list[Measured]:
    with ExitStack() as stack:
        started = [stack.enter_context(Ranks(one, workload, network)) for one in contestants]
        return run_in_turn(config, started, network, workload, link)


def _row(problem: Problem, rated: Rated, row: Measured, plan: Measured) -> Planned:
    assert rated.design is not None and rated.assignment is not None
    loads = add_all(cluster_of(problem, rated.design), rated.assignment.chosen)
    sent = np.sum(list(traffic_by_rank(problem, rated.design, loads).values()), axis=0)
    return Planned(
        row.workload,
        row.link,
        row.contestant.name,
        rated.choice.label,
        rated.step,
        1000 * row.middle,
        1000 * min(row.seconds),
        1000 * max(row.seconds),
        1000 * plan.middle,
        float(sent.max()),
        sum(row.counted.values()),
    )


HEADER = (
    "| link | way | predicted, ms | measured, ms | off by | predicted, MB | counted, MB | off by | to the plan |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def lines(rows: Sequence[Planned]) -> Iterator[str]:
    """Rows of the table for one link, fastest first."""
    for row in sorted(rows, key=lambda one: one.measured):
        where = "loopback" if row.link == NONE else row.link
        name = f"**{row.what}**" if row.contestant == PLAN else f"`{row.contestant}`"
        yield (
            f"| {where} | {name} | {row.predicted:.1f} | {row.measured:.1f} ({row.fastest:.0f} to {row.slowest:.0f}) | "
            f"{row.error:+.1%} | {row.predicted_bytes / 1e6:.2f} | {row.sent / 1e6:.2f} | {row.bytes_error:+.1%} | "
            f"{row.measured / row.beside - 1:+.1%} |"
        )


def summary(rows: Sequence[Planned]) -> str:
    """The figures that count: medians of the absolute errors, and how far the plan is from the best on each link."""
    steps, sizes = ([abs(getattr(row, name)) for row in rows] for name in ("error", "bytes_error"))
    text = f"{len(rows)} ways: step off by {median(steps):.1%} in the median, {max(steps):.1%} at most; "
    text += f"bytes by {median(sizes):.1%}, {max(sizes):.1%}"
    for link in dict.fromkeys(row.link for row in rows):
        best = max(row.beside / row.measured for row in rows if row.link == link and row.contestant != PLAN)
        text += f"\n{link}: the plan's step is {best - 1:+.1%} beside the best of the others"
    return text
