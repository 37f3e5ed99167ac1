"""Small random problems, and the best plan of each by trying everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from recpipe.embedding.layout import TableLayout, make_layout
from recpipe.errors import ScheduleError
from recpipe.planner.designs import Choice, Design, choices, make_design, placement_of, table_shape
from recpipe.planner.loads import Chosen, Loads
from recpipe.planner.memory import cluster_of
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.statistics import Demand
from recpipe.planner.table_costs import Allowed, kinds_of
from recpipe.planner.topology import Nodes, Tier, Topology
from recpipe.planner.tower import BlockCost, Kernel, Tower
from recpipe.specs import TableSpec

TYPES = ("table_wise", "row_wise", "column_wise", "replicated")


def tower(rng: random.Random, num_blocks: int) -> Tower:
    """A tower of made-up costs."""
    blocks = []
    for number in range(num_blocks):
        forward = Kernel(rng.uniform(1e3, 2e5), rng.uniform(10, 2000), rng.uniform(0, 1e5))
        backward = (Kernel(2 * forward.flops, 2 * forward.moved, forward.fixed), Kernel(0.0, rng.uniform(10, 500), 0.0))
        blocks.append(
            BlockCost(f"block_{number}", (forward,), backward, rng.uniform(50, 5000), rng.randrange(100, 100_000))
        )
    cuts = tuple(rng.randrange(8, 600) for _ in range(num_blocks + 1))
    return Tower(tuple(blocks), cuts, 13, beside=rng.randrange(num_blocks))


def topology(rng: random.Random, ranks: int) -> Topology:
    """Some machine: one node, slow or fast links, CPU or GPU."""
    near = Tier(rng.uniform(0, 2e-4), 10 ** rng.uniform(7.5, 10))
    group = Nodes(1, ranks, 10 ** rng.uniform(6.5, 8), 1e11, 1e10, 10 ** rng.uniform(9, 10), 2e-6, 1e-8)
    return Topology("random", (group,), near, near, rng.choice(["sync", "async"]), 0.1)


def problem(seed: int, ranks: int = 2, num_tables: int = 2, scope: Scope | None = None) -> Problem:
    """A problem that can be searched to the end."""
    rng = random.Random(seed)
    tables = tuple(
        Demand(
            TableSpec(f"t_{i}", f"f_{i}", int(10 ** rng.uniform(0.8, 5)), 8 if seed % 3 else 64),
            rng.choice([1.0, 1.0, 4.0]),
            rng.choice([0.0, 0.8, 1.2]),
            rng.random() < 0.5,
        )
        for i in range(num_tables)
    )
    few = Scope((), (1, 2), ("1f1b", "zb_h1", "gpipe"), (rng.choice(["ahead", "step", "spread"]),), (2,), 60.0, 4000, 3)
    rules = {table.spec.name: Allowed(TYPES) for table in tables}
    return Problem(
        topology(rng, ranks),
        tables,
        tower(rng, rng.randrange(2, 5)),
        512,
        rng.choice(["adagrad", "sgd"]),
        rng.choice(["adam", "sgd"]),
        allowed=rules,
        scope=scope or few,
        model="random",
        data="random",
    )


def cuts(blocks: int, stages: int) -> Iterator[tuple[range, ...]]:
    """Every way to cut `blocks` blocks in `stages` non-empty stages."""
    for starts in itertools.combinations(range(1, blocks), stages - 1):
        edges = (0, *starts, blocks)
        yield tuple(range(a, b) for a, b in itertools.pairwise(edges))


def designs(one: Problem) -> Iterator[Design]:
    """Every schedule with every cut."""
    for choice in choices(one):
        yield from designs_of(one, choice)


def designs_of(one: Problem, choice: Choice) -> Iterator[Design]:
    try:
        for cut in cuts(len(one.tower.blocks), placement_of(choice).num_stages):
            yield make_design(one, choice, cut)
    except ScheduleError:
        return


def assignments(one: Problem, design: Design) -> Iterator[tuple[Chosen, ...]]:
    """Every kind of every table on every choice of ranks."""
    shape = table_shape(one, len(design.consumers))
    ranks = range(one.topology.world)
    options = []
    for table in one.tables:
        mine: list[Chosen] = []
        for kind in kinds_of(table, shape, one.allowed_for(table.spec.name)):
            pinned = one.allowed_for(table.spec.name).ranks
            if kind.replicated:
                mine.append((kind, ()))
            elif pinned:
                mine.append((kind, pinned))
            elif kind.sharding == "row_wise":
                mine.append((kind, tuple(ranks)))
            else:
                mine += [(kind, group) for group in itertools.combinations(ranks, kind.num_shards)]
        options.append(mine)
    yield from itertools.product(*options)


def best_by_trying(one: Problem) -> float:
    """Milliseconds of the fastest plan that fits; infinite if none does."""
    best = float("inf")
    for design in designs(one):
        model, cluster = design.model(), cluster_of(one, design)
        for chosen in assignments(one, design):
            loads = Loads(cluster)
            for kind, ranks in chosen:
                loads.add(kind, ranks)
            if loads.shortfall() == 0:
                best = min(best, model.step(loads.times()))
    return best


def layouts_of(one: Problem) -> tuple[TableLayout, ...]:
    """Whole tables, one rank after the other."""
    ranks = range(one.topology.world)
    return tuple(make_layout(t.spec, "table_wise", [i % len(ranks)], 1) for i, t in enumerate(one.tables))
