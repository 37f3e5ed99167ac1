"""``recpipe bench overlap``: how much of an exchange is hidden, and whether bytes stay the same however a step is cut."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from recpipe.bench.compare import Measured, run_block
from recpipe.bench.links import NONE, Network
from recpipe.bench.ranks import Ranks, on_links
from recpipe.bench.settings import BenchConfig, Workload, parse_contestant, parse_mesh

logger = logging.getLogger(__name__)

NOTES = """ms a step, medians of blocks, of the rank that takes longest. raw: messages of the exchange (ids, rows, gradients)
sent again with nothing to hide behind, kind after kind. exposed: time that compute stood still for them, counted from when
every rank had issued its part; late: the same before that moment, as another rank was not yet so far (a bubble, or noise).
alone: the step with every message there at once. network: all messages of the step sent again at once, nothing else. MB:
sent by the rank that sends most, as its interface counts, and as recpipe counts.
Targets: exposed/raw <= 0.25 where alone >= raw; step/max <= 1.15."""
_COLUMNS = (
    "mesh",
    "M",
    "raw",
    "exposed",
    "exp/raw",
    "late",
    "alone",
    "network",
    "step",
    "step/max",
    "MB sent",
    "counted",
    "differ",
)


@dataclass(frozen=True)
class Overlap:
    """One mesh and number of microbatches on one link, in seconds of a step; bytes of a step, interface and own count."""

    workload: Workload
    link: str
    mesh: str
    microbatches: int
    raw: float
    exposed: float
    late: float
    alone: float
    network: float
    step: float
    bytes: float
    counted: float
    exposed_by_op: dict[str, float]

    @property
    def exposed_share(self) -> float:
        return self.exposed / self.raw

    @property
    def over_bound(self) -> float:
        return self.step / max(self.alone, self.network)


def overlap(config: BenchConfig) -> Iterator[Overlap]:
    """Runs everything, one row at a time.

    Raises:
        ConfigError: settings that do not fit, or links that cannot be made.
        TrainingError: a rank died.
    """
    for mesh in config.meshes:
        parse_mesh(mesh, config.ranks)
    for workload, link, network in on_links(config):
        for mesh in config.meshes:
            for microbatches in config.microbatches:
                yield _measure(config, network, workload, link, mesh, microbatches)


def _measure(
    config: BenchConfig, network: Network, workload: Workload, link: str, mesh: str, microbatches: int
) -> Overlap:
    contestant = parse_contestant(f"window:{mesh}:m{microbatches}:ahead", config.ranks)
    row = Measured(contestant, workload, link)
    exposed, alone, wire = [], [], []
    with Ranks(contestant, workload, network) as ranks:
        run_block(config, ranks, network, Measured(contestant, workload, link))
        ranks.ask("record")
        for _ in range(config.blocks):
            run_block(config, ranks, network, row)
            exposed.append(max(ranks.ask("exposed"), key=lambda reply: float(reply["exchange"])))
            alone.append(_largest(ranks.ask("alone", warmup=config.warmup), "seconds"))
            replies = ranks.ask("network")
            wire.append((_largest(replies, "exchange"), _largest(replies, "all")))
    middle = sorted(exposed, key=lambda reply: float(reply["exchange"]))[len(exposed) // 2]
    return Overlap(
        workload, link, mesh, microbatches, median(raw for raw, _ in wire), float(middle["exchange"]),
        float(middle["late"]), median(alone),
        median(everything for _, everything in wire), row.middle, median(row.bytes), sum(row.counted.values()),
        dict(middle["by_op"]),
    )  # fmt: skip


def _largest(replies: list[dict[str, Any]], key: str) -> float:
    return max(float(reply[key]) for reply in replies)


def header(workload: Workload, link: str) -> str:
    """Above the rows of a workload on a link."""
    where = "loopback" if link == NONE else link
    return f"{workload.model}, {workload.ids} ids, {where}\n" + "".join(f"{name:>10}" for name in _COLUMNS)


def line(row: Overlap) -> str:
    """A row for people."""
    times = [f"{1e3 * seconds:.1f}" for seconds in (row.raw, row.exposed)]
    cells = [
        row.mesh, str(row.microbatches), *times, f"{row.exposed_share:.2f}", f"{1e3 * row.late:.1f}", f"{1e3 * row.alone:.1f}",
        f"{1e3 * row.network:.1f}", f"{1e3 * row.step:.1f}", f"{row.over_bound:.2f}", f"{row.bytes / 1e6:.3f}",
        f"{row.counted / 1e6:.3f}", f"{row.bytes / row.counted - 1:+.2%}",
    ]  # fmt: skip
    return "".join(f"{cell:>10}" for cell in cells)
