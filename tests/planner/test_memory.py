"""Predicted bytes against allocated bytes, on real gloo ranks; and the statistics behind predicted traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recpipe.comm import Groups, Lane, Traffic
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.tables import ShardedTables
from recpipe.model import build_model
from recpipe.model.config import DcnV2Config
from recpipe.planner.build import to_plan
from recpipe.planner.memory import rank_memory
from recpipe.planner.plan import PlannedTable, layout_of
from recpipe.planner.problem import Problem, Scope
from recpipe.planner.search import search
from recpipe.planner.statistics import Demand, fit_skew, measured_demands
from recpipe.planner.table_costs import Allowed
from recpipe.planner.topology import Nodes, Tier, Topology
from recpipe.planner.tower import count_tower
from recpipe.specs import Feature, Schema, TableSpec
from tests.ranks import run_ranks

ROWS = (5003, 17, 40_001, 900, 12_345)
RULES = (
    Allowed(("row_wise",), ("window",)),
    Allowed(("replicated",)),
    Allowed(("column_wise",), ("window",)),
    Allowed(("table_wise",), ("pooled",)),
    Allowed(("table_wise", "row_wise"), ("window", "pooled")),
)


def problem(optimizer: str, ranks: int) -> Problem:
    schema = Schema(13, tuple(Feature(f"c{i}", n) for i, n in enumerate(ROWS)))
    model = build_model(DcnV2Config(embedding_dim=16), schema, device="meta")
    link = Tier(1e-4, 1e9)
    top = Topology("here", (Nodes(1, ranks, 1e9, 1e11, 4e9, 1e10, 3e-6, 1.5e-8),), link, link, "sync", 0.1)
    rules = {f"t_c{i}": rule for i, rule in enumerate(RULES)}
    scope = Scope((1,), (1,), ("1f1b",), ("ahead",))
    tables = tuple(Demand(spec) for spec in model.tables)
    return Problem(top, tables, count_tower(model), 512, optimizer, "adam", allowed=rules, scope=scope)


def allocated(rank: int, world: int, tables: list[PlannedTable], optimizer: str) -> int:
    groups, traffic = Groups.create(), Traffic()
    lanes = Lanes(*(Lane(groups.ids, rank, world, traffic, name) for name in ("ids", "rows", "row_gradients")))
    layouts = [layout_of(table, 1) for table in tables]

    def init_rows(table: int, start: int, stop: int) -> torch.Tensor:
        return torch.zeros(stop - start, layouts[table].spec.dim)

    return ShardedTables(layouts, RowOptimizer(optimizer), init_rows, lanes, torch.float32, groups.control).num_bytes()


@pytest.mark.parametrize(("optimizer", "ranks"), [("adagrad", 2), ("sgd", 4)])
def test_predicted_table_bytes_are_the_allocated_ones(optimizer: str, ranks: int) -> None:
    """Every sharding a plan of two exchanges mixes, optimizer state included; the promise is 10%."""
    one = problem(optimizer, ranks)
    best = search(one, progress=lambda line: None).best
    plan = to_plan(one, best)
    memory = rank_memory(one, best.design, best.assignment.chosen)
    real = run_ranks(allocated, ranks, list(plan.tables), optimizer)
    predicted = [part.tables + part.table_state for part in memory]
    assert predicted == pytest.approx(real, rel=0.01)
    assert len({kind.label for kind, _ in best.assignment.chosen}) >= 4


def test_tower_bytes_are_counted_on_the_meta_device() -> None:
    """Weights and what forward keeps for backward, against a real model and real saved tensors."""
    schema = Schema(13, tuple(Feature(f"c{i}", n) for i, n in enumerate(ROWS)))
    tower = count_tower(build_model(DcnV2Config(embedding_dim=16), schema, device="meta"))
    model = build_model(DcnV2Config(embedding_dim=16), schema)
    assert sum(block.parameters for block in tower.blocks) == sum(p.numel() for p in model.parameters())
    kept: dict[int, int] = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}
    alive: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    from recpipe.model import StepContext

    rows = 256
    dense, vectors = torch.randn(rows, 13), torch.randn(rows, len(ROWS), 16).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(dense, vectors, StepContext(training=True))
    assert sum(block.saved for block in tower.blocks) * rows == pytest.approx(sum(kept.values()), rel=0.1)


def test_unique_rows_follow_a_measured_sample() -> None:
    """Fitted to shares at three sizes of a power law, the demand predicts a fourth and the early share."""
    rng = np.random.default_rng(0)
    rows, skew = 20_000, 1.1
    weights = np.arange(1, rows + 1) ** -skew
    ids = rng.choice(rows, 65_536, p=weights / weights.sum())

    def share(size: int) -> float:
        return float(np.mean([len(np.unique(part)) / size for part in ids.reshape(-1, size)]))

    spec = TableSpec("t_c", "c", rows, 8)
    entry = {"mean_ids": 1.0, "unique_share": {str(size): share(size) for size in (256, 2048, 16_384)}}
    demand = measured_demands([spec], {"features": {"c": entry}}, True)[0]
    assert demand.unique_share(8192) == pytest.approx(share(8192), rel=0.05)
    halves = ids.reshape(-1, 4096)
    early = np.mean([1 - np.isin(np.unique(b), a).mean() for a, b in zip(halves, halves[1:], strict=False)])
    assert demand.early_share(4096, 4096) == pytest.approx(float(early), abs=0.06)
    blocks = [0, 100, 5000, rows]
    counts = np.mean([np.histogram(np.unique(part), blocks)[0] for part in halves], axis=0)
    assert demand.unique_in(4096, blocks) == pytest.approx(counts, rel=0.1)


def test_fit_finds_the_exponent() -> None:
    for skew in (0.5, 1.0, 1.5):
        true = Demand(TableSpec("t", "f", 50_000, 8), skew=skew)
        assert fit_skew(50_000, [(n, true.unique_share(n)) for n in (512, 4096, 32_768)]) == pytest.approx(
            skew, abs=0.051
        )
