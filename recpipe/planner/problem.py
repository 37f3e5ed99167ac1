"""Everything a plan is made from, as one record: machines, tables, tower, batch, rules, and what the user allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.planner.statistics import Demand
from recpipe.planner.table_costs import Allowed
from recpipe.planner.topology import Topology

if TYPE_CHECKING:
    # The command line reads this module's names before torch is needed.
    from recpipe.planner.tower import Line, Tower

DENSE_STATE = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""Values of optimizer state a weight."""
SCHEDULES = (
    "1f1b",
    "gpipe",
    "zb_h1",
    "zb_h2",
    "interleaved",
    "looped_bfs",
    "interleaved_zb",
    "zbv",
    "chimera",
    "dualpipe",
    "dualpipev",
    "greedy",
)
"""Exact families, in the order in which equals are preferred."""


@dataclass(frozen=True)
class Scope:
    """What the search may use.

    Args:
        stages: ranks of one pipeline; empty: every number that divides the ranks and does not straddle nodes.
        microbatches: a step.
        schedules: families.
        modes: how rows travel: step, route, ahead, spread.
        chunks: pieces a rank runs, for looped families.
        seconds: time box; what has been found by then is the plan, and the report says so.
        effort: most table assignments that are looked at, for each schedule that is polished.
        steps: optimizer steps that are simulated.
        partitions: most ways to cut the tower that are tried for each schedule, beside the one of least cost.
        margin: share of the fastest step by which a simpler way (fewer stages, then fewer microbatches, then no deferred
            gradients) may be slower and still be chosen: predictions are not better than that.
    """

    stages: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = (1, 2, 4, 8, 16)
    schedules: tuple[str, ...] = SCHEDULES
    modes: tuple[str, ...] = ("ahead", "spread", "route", "step")
    chunks: tuple[int, ...] = (2,)
    seconds: float = 30.0
    effort: int = 4000
    steps: int = 3
    partitions: int = 64
    margin: float = 0.0


@dataclass(frozen=True)
class Problem:
    """What to plan.

    Args:
        topology: the machines.
        tables: what a step asks of each table, in feature order.
        tower: the dense part.
        global_batch: rows of data a step, over all replicas.
        table_optimizer, dense_optimizer: rules of rows and tower.
        element: bytes of a value of the tower and of what crosses stages.
        row_element: bytes of a value of a table row, kept and sent.
        allowed: what each table may use, by name; missing ones may use anything.
        scope: what the search may use.
        model, data: names, to tell plans apart.
        issue: by ranks of a pipeline, seconds that issuing messages takes of the compute, as a run was measured to take: lines
            by op and home stage. Empty where nobody measured.
    """

    topology: Topology
    tables: tuple[Demand, ...]
    tower: Tower
    global_batch: int
    table_optimizer: str = "adagrad"
    dense_optimizer: str = "adam"
    element: int = 4
    row_element: int = 4
    allowed: Mapping[str, Allowed] = field(default_factory=dict)
    scope: Scope = Scope()
    model: str = ""
    data: str = ""
    issue: Mapping[int, Mapping[str, Line]] = field(default_factory=dict)

    def allowed_for(self, name: str) -> Allowed:
        """Rules of one table."""
        return self.allowed.get(name) or Allowed(SHARDING_TYPES)

    @property
    def input_row_bytes(self) -> float:
        """Bytes of one row of data as it is read: dense values, label, ids and bag lengths."""
        lookups = sum(demand.mean_ids for demand in self.tables)
        return 4.0 * (self.tower.num_dense + 1) + 8.0 * lookups + 4.0 * len(self.tables)
