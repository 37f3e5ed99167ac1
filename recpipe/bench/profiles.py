"""``recpipe bench profile``: the costliest operators and functions of each contestant's step, on rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recpipe.bench.ranks import Ranks, on_links
from recpipe.bench.settings import BenchConfig, Workload, parse_contestant

Row = tuple[str, float, float, float]
_SHOWN = 20


@dataclass(frozen=True)
class Profile:
    """Of one contestant on one link; rows are (name, calls, own milliseconds, milliseconds with what it called) a step."""

    contestant: str
    workload: Workload
    link: str
    operators: list[Row]
    functions: list[Row]

    def text(self) -> str:
        """For people."""
        lines = [
            f"{self.contestant}: {self.workload.model}, {self.workload.ids} ids, link {self.link}; rank 0, ms a step"
        ]
        for name, rows in (("operators, wall clock", self.operators), ("functions, processor time", self.functions)):
            lines.append(f"{name:<76}{'calls':>8}{'own':>9}{'whole':>9}")
            lines += [f"  {row[0][:73]:<74}{row[1]:>8.1f}{row[2]:>9.2f}{row[3]:>9.2f}" for row in rows[:_SHOWN]]
        return "\n".join(lines)


def profiles(config: BenchConfig) -> Iterator[Profile]:
    """Runs each contestant on each link. Raises as `recpipe.bench.compare.compare`."""
    contestants = [parse_contestant(name, config.ranks) for name in config.contestants]
    for workload, link, network in on_links(config):
        for contestant in contestants:
            with Ranks(contestant, workload, network) as ranks:
                ranks.ask("block", warmup=config.warmup, steps=config.steps)
                reply = ranks.ask("profile", steps=config.steps + config.warmup)[0]
            yield Profile(contestant.name, workload, link, reply["operators"], reply["functions"])
