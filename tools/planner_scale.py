"""How long planning takes and how much memory: python -m tools.planner_scale

Synthetic tables of mixed sizes, pooling factors and skews; the MLPerf tower; machines of eight H100 a node. Wall and CPU
seconds of one process and one thread, after the imports; the search is deterministic, so effort is the same on every machine.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import torch

from recpipe.model import build_model
from recpipe.model.config import DcnV2Config
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.search import search
from recpipe.planner.statistics import Demand
from recpipe.planner.topology import Nodes, Tier, Topology
from recpipe.planner.tower import count_tower
from recpipe.specs import Feature, Schema

H100 = Nodes(1, 8, 80e9, 200e12, 2.68e12, 1.675e12, 4e-6, 0.5e-9)
CASES = ((26, 8, 2048), (26, 128, 512), (100, 256, 256), (1000, 1536, 64))


def make(num_tables: int, ranks: int, rows: int, seconds: float) -> Problem:
    """A problem of so many tables on so many ranks, `rows` rows a rank."""
    rng = np.random.default_rng(0)
    sizes = np.rint(10 ** rng.uniform(2, 7.3, num_tables)).astype(int).tolist()
    means = np.rint(rng.exponential(3, num_tables) + 1).tolist()
    skews = rng.uniform(0.6, 1.3, num_tables).round(2).tolist()
    schema = Schema(13, tuple(Feature(f"cat_{i}", n, m) for i, (n, m) in enumerate(zip(sizes, means, strict=True))))
    cfg = DcnV2Config(
        embedding_dim=128,
        dense_arch_layer_sizes=[512, 256, 128],
        over_arch_layer_sizes=[1024, 1024, 512, 256, 1],
        structure="stacked",
        dcn_low_rank_dim=512,
    )
    model = build_model(cfg, schema, device="meta")
    tables = tuple(Demand(s, m, k) for s, m, k in zip(model.tables, means, skews, strict=True))
    near, far = Tier(15e-6, 360e9, 0.5e-6), Tier(25e-6, 40e9, 1e-6)
    topology = Topology(f"{ranks} H100", (Nodes(**{**H100.__dict__, "count": ranks // 8}),), near, far)
    scope = Scope(seconds=seconds)
    return Problem(topology, tables, count_tower(model), rows * ranks, "rowwise_adagrad", "adagrad", scope=scope)


def main() -> None:
    """Prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, help="number of the case")
    parser.add_argument("--seconds", type=float, default=45.0, help="time box of a search")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'tables':>7}{'ranks':>7}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'step ms':>9}{'above bound':>12}  plan")
    for number, (tables, ranks, rows) in enumerate(CASES):
        if options.only not in (None, number):
            continue
        problem = make(tables, ranks, rows, options.seconds)
        wall, cpu = time.perf_counter(), time.process_time()
        found = search(problem)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        late = ", ended by the time box" if found.timed_out else ""
        gap = found.best.step / found.bound - 1
        print(
            f"{tables:>7}{ranks:>7}{cpu:>8.2f}{wall:>8.2f}{peak:>10.0f}{found.best.step:>9.3f}{gap:>12.1%}"
            f"  {found.best.choice.label}{late}",
            flush=True,
        )


if __name__ == "__main__":
    main()
