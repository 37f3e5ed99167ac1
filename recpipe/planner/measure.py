"""What one rank of this machine reaches, measured in this process in about a second. Links need a second process: see
tools/measure_topology.py; where nobody measured them, gloo over loopback on two cores stands in."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from recpipe.planner.topology import Nodes, Tier, Topology

LOOPBACK = Tier(130e-6, 1.2e9)
"""Measured between two gloo ranks on two cores (conf/topology/local.yaml)."""


def rank_rates() -> dict[str, float]:
    """Rates of one rank with torch's present number of threads, named and scaled as in a topology file."""
    a, b = torch.randn(2048, 512), torch.randn(512, 512)
    flops = 2 * a.shape[0] * a.shape[1] * b.shape[1] / best_of(lambda: a @ b)
    long = torch.randn(1 << 22)
    stream = 2 * 4 * long.numel() / best_of(lambda: long * 2.0)
    table, rows = torch.randn(400_000, 64), torch.randint(400_000, (53_248,))
    gather = 2 * 4 * 64 * rows.numel() / best_of(lambda: table.index_select(0, rows))
    small = torch.randn(8)
    launch = best_of(lambda: [small + 1.0 for _ in range(1000)]) / 1000
    keys = (torch.rand(53_248) ** 4 * 5_000_000).long()
    dedup = best_of(lambda: torch.unique(keys, return_inverse=True)) / keys.numel()
    return {
        "tflops": flops / 1e12,
        "bandwidth_gbs": stream / 1e9,
        "gather_gbs": gather / 1e9,
        "launch_us": launch * 1e6,
        "dedup_ns": dedup * 1e9,
    }


def best_of(function: Callable[[], object], repeats: int = 7) -> float:
    """Least seconds of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def topology_here(nodes: int, ranks: int, memory: float, link: Tier = LOOPBACK) -> Topology:
    """Nodes like this machine.

    Args:
        nodes, ranks: nodes, and ranks a node.
        memory: bytes of a rank.
        link: between any two ranks.
    """
    rates = rank_rates()
    group = Nodes(
        count=nodes,
        ranks=ranks,
        memory=memory,
        flops=rates["tflops"] * 1e12,
        bandwidth=rates["bandwidth_gbs"] * 1e9,
        gather=rates["gather_gbs"] * 1e9,
        launch=rates["launch_us"] * 1e-6,
        dedup=rates["dedup_ns"] * 1e-9,
    )
    return Topology("local", (group,), link, link, "sync", 0.1, True)
