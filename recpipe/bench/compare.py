"""``recpipe bench compare``: contestants side by side; their blocks alternate, so that they meet the same machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from recpipe.bench.links import NONE, Network, bits_per_second, open_network
from recpipe.bench.ranks import Ranks
from recpipe.bench.settings import COMPUTE_16, BenchConfig, Contestant, Workload, parse_contestant, workloads

logger = logging.getLogger(__name__)


@dataclass
class Measured:
    """A contestant on one link.

    Args:
        seconds: of a step, one value a block: of the slowest rank.
        bytes: sent in a step by the rank that sends most, as the interface counts them, one value a block.
        counted: the same by purpose, as recpipe counts them; empty for TorchRec.
        peak: resident bytes of the largest rank since it began.
    """

    contestant: Contestant
    workload: Workload
    link: str
    seconds: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)
    peak: int = 0

    @property
    def middle(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Limit:
    """Seconds that a step needs at least.

    Args:
        gemm, gemm16: products of the tower at the measured speed, in 32 and in 16 bits.
        tables: bytes of the tables at the measured bandwidth.
    """

    gemm: float
    gemm16: float
    tables: float

    def products(self, contestant: Contestant) -> float:
        """Those of the tower, in the precision that the contestant computes in."""
        return self.gemm16 if COMPUTE_16 in contestant.settings else self.gemm

    def of(self, measured: Measured) -> float:
        """With what the contestant sends over its link."""
        rate = bits_per_second(measured.link)
        wire = 0.0 if rate is None else median(measured.bytes) * 8 / rate
        return max(self.products(measured.contestant) + self.tables, wire)


@dataclass(frozen=True)
class Section:
    """All contestants on one model, kind of ids and link."""

    workload: Workload
    link: str
    rows: Sequence[Measured]
    limit: Limit

    @property
    def reference(self) -> float | None:
        """Seconds of the fastest synchronous TorchRec pipeline; None without one."""
        return min((row.middle for row in self.rows if row.contestant.is_synchronous_torchrec), default=None)


def compare(config: BenchConfig) -> Iterator[Section]:
    """Runs everything, one section at a time.

    Raises:
        ConfigError: settings that do not fit, or links that cannot be made.
        TrainingError: a contestant died.
    """
    contestants = [parse_contestant(name, config.ranks) for name in config.contestants]
    for link in config.links:
        bits_per_second(link)
    for workload in workloads(config):
        limit = measure_limit(workload)
        loopback = [link for link in config.links if link == NONE]
        for links in (loopback, [link for link in config.links if link != NONE]):
            if links:
                yield from _on_network(config, contestants, workload, links, limit)


def measure_limit(workload: Workload) -> Limit:
    """Asks the machine, with all ranks at it together."""
    with (
        open_network(NONE, workload.ranks) as network,
        Ranks(Contestant("machine", "machine"), workload, network) as ranks,
    ):
        replies = ranks.ask("measure")
    flops, flops16, bandwidth = (sum(reply[key] for reply in replies) for key in ("flops", "flops16", "bandwidth"))
    step = replies[0]["step_flops"]
    limit = Limit(step / flops, step / flops16, replies[0]["table_bytes"] / bandwidth)
    logger.info(
        "%s, %s ids: %.0f GFLOP/s (bf16: %.0f) and %.1f GB/s a rank; a step needs %.1f ms of products (%.1f) and %.1f ms of "
        "table traffic", workload.model, workload.ids, *(each / workload.ranks / 1e9 for each in (flops, flops16, bandwidth)),
        *(1e3 * seconds for seconds in (limit.gemm, limit.gemm16, limit.tables)),
    )  # fmt: skip
    return limit


def _on_network(
    config: BenchConfig, contestants: Sequence[Contestant], workload: Workload, links: Sequence[str], limit: Limit
) -> Iterator[Section]:
    with ExitStack() as stack:
        network = stack.enter_context(open_network(links[0], config.ranks))
        started = []
        for contestant in contestants:
            started.append(stack.enter_context(Ranks(contestant, workload, network)))
            logger.info("ready: %s", contestant.label)
        for link in links:
            network.set_rate(link)
            yield Section(workload, link, run_in_turn(config, started, network, workload, link), limit)


def run_in_turn(
    config: BenchConfig, started: Sequence[Ranks], network: Network, workload: Workload, link: str
) -> list[Measured]:
    """Blocks of all contestants, in turn; a first round, which only fills pipelines and caches, does not count."""
    rows = [Measured(ranks.contestant, workload, link) for ranks in started]
    for block in range(config.blocks + 1):
        for ranks, row in zip(started, rows, strict=True):
            run_block(config, ranks, network, row if block else Measured(ranks.contestant, workload, link))
    return rows


def run_block(config: BenchConfig, ranks: Ranks, network: Network, row: Measured) -> None:
    """Runs a block of all ranks and adds it to `row`."""
    before = network.sent()
    replies: list[dict[str, Any]] = ranks.ask("block", warmup=config.warmup, steps=config.steps)
    steps = config.warmup + config.steps
    sent = [(after - first) / steps for first, after in zip(before, network.sent(), strict=True)]
    row.seconds.append(max(reply["seconds"] for reply in replies))
    row.bytes.append(max(sent))
    busiest = max(replies, key=lambda reply: sum(reply["sent"].values()))
    row.counted = {purpose: count / steps for purpose, count in busiest["sent"].items()}
    row.peak = max(reply["peak"] for reply in replies)
