"""The window exchange against whole tables: every layout, optimizer, pooling, number of ranks and microbatches."""

from __future__ import annotations

import pytest
import torch

from recpipe.comm import Groups, Lane, Traffic
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.layout import make_layout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.tables import ShardedTables
from recpipe.specs import TableSpec
from tests.embedding.plain import PlainOptimizer, make_batch, pooled, table_rows
from tests.ranks import run_ranks

DIM, STEPS, LR = 8, 6, 0.05
SIZES = [5, 17, 40, 3, 101]
TYPES = ["table_wise", "row_wise", "column_wise", "table_column_wise", "table_row_wise", "grid", "replicated"]


def specs_of(kind: str) -> list[TableSpec]:
    return [
        TableSpec(f"t{i}", f"f{i}", n, DIM, "mean" if kind == "multi_hot" and i % 2 else "sum")
        for i, n in enumerate(SIZES)
    ]


def lanes_of(groups: Groups, traffic: Traffic) -> Lanes:
    def lane(group: object, purpose: str) -> Lane:
        return Lane(group, groups.rank, groups.world, traffic, purpose)  # type: ignore[arg-type]

    return Lanes(lane(groups.ids, "ids"), lane(groups.rows, "rows"), lane(groups.gradients, "row_gradients"))


def layouts_of(specs: list[TableSpec], sharding: str, world: int) -> list:
    types = TYPES if sharding == "mixed" else [sharding]
    local_size = 2 if world == 4 else world
    return [
        make_layout(spec, types[i % len(types)], ranks_of(types[i % len(types)], i, world, local_size), local_size)
        for i, spec in enumerate(specs)
    ]


def ranks_of(sharding: str, table: int, world: int, local_size: int) -> list[int]:
    if sharding == "table_wise":
        return [table % world]
    if sharding in ("table_row_wise", "table_column_wise"):
        node = table % (world // local_size)
        return list(range(node * local_size, (node + 1) * local_size))
    return list(range(world))


def tables_of(specs: list[TableSpec], sharding: str, world: int, optimizer: str, traffic: Traffic) -> ShardedTables:
    rule = RowOptimizer(optimizer, eps=1e-6, l2=0.01)
    return ShardedTables(
        layouts_of(specs, sharding, world), rule,
        lambda t, a, b: table_rows(t, a, b, DIM, torch.float64), lanes_of(Groups.create(), traffic), torch.float64,
    )  # fmt: skip


def rows_of(rank: int, step: int) -> int:
    """Uneven, and none at all on some ranks in some steps."""
    return [7, 4, 0, 9][(rank + step) % 4] if step % 3 else 6 + rank


def train_sharded(rank, world, sharding, optimizer, kind, micro, reverse, fault="none"):
    specs, traffic = specs_of(kind), Traffic()
    tables = tables_of(specs, sharding, world, optimizer, traffic)
    order = list(range(micro))[::-1] if reverse else list(range(micro))
    position = [order.index(m) for m in range(micro)]
    outputs = []
    for step in range(STEPS):
        batch = make_batch(rows_of(rank, step), specs, 100 * step + rank, kind, torch.float64)
        pieces = batch.microbatches(micro)
        window = tables.open(pieces, position, header=(rank, batch.num_rows))
        window.request()
        assert window.headers.tolist() == [[r, rows_of(r, step)] for r in range(world)]
        window.lookup(LR)
        for m in range(micro):
            window.send_rows(m)
        got = [window.pool(m) for m in range(micro)]
        outputs.append(torch.cat(got))
        for m in order:
            if not (fault == "lost gradient" and rank == world - 1):
                window.add_gradient(m, loss_gradient(got[m]))
            window.send_gradients(m)
        window.update(step + 1)
    return outputs, snapshot(tables), dict(traffic.sent)


def loss_gradient(pooled_BFD: torch.Tensor) -> torch.Tensor:
    """Gradient of sum(sin(3 x)): differs everywhere."""
    return 3 * torch.cos(3 * pooled_BFD)


def snapshot(tables: ShardedTables) -> list:
    store = tables.window.store
    return [
        (local.table, local.shard, store.weight(local).clone(),
         {n: store.state(local, n).clone() for n in store.states[local.piece_class]})
        for local in store.rowmap.local_shards
    ]  # fmt: skip


def train_plain(world, optimizer, kind, dtype=torch.float64, l2=0.01, lr=LR):
    specs = specs_of(kind)
    tables = [table_rows(i, 0, s.num_rows, DIM, dtype).requires_grad_() for i, s in enumerate(specs)]
    rule = PlainOptimizer(optimizer, tables, l2=l2, eps=1e-6)
    outputs = []
    for step in range(STEPS):
        batches = [make_batch(rows_of(r, step), specs, 100 * step + r, kind, dtype) for r in range(world)]
        got = [pooled(tables, specs, batch) for batch in batches]
        outputs.append([g.detach() for g in got])
        for table in tables:
            table.grad = torch.zeros_like(table)
        if any(batch.num_rows for batch in batches):
            sum((3 * g).sin().sum() for g in got).backward()
        rule.step(tables, [touched(batches, i) for i in range(len(specs))], lr)
    return outputs, tables, rule


def touched(batches, table):
    rows = [b.features([table]).ids_N for b in batches if b.num_rows]
    return torch.unique(torch.cat(rows)) if rows else torch.empty(0, dtype=torch.int64)


def assert_equal(results, plain, tolerance=1e-12):
    outputs, tables, rule = plain
    for rank, (got, shards, _) in enumerate(results):
        for step in range(STEPS):
            torch.testing.assert_close(got[step], outputs[step][rank], atol=tolerance, rtol=tolerance)
        for table, s, weight, state in shards:
            whole = tables[table].data
            torch.testing.assert_close(
                weight, whole[s.row_start : s.row_stop, s.col_start : s.col_stop], atol=tolerance, rtol=tolerance
            )
            if "sum" in state:
                kept = rule.sums[table][s.row_start : s.row_stop]
                kept = kept[:, s.col_start : s.col_stop] if kept.dim() == 2 else kept
                torch.testing.assert_close(state["sum"], kept, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sharding", [*TYPES, "mixed"])
def test_every_layout(sharding, world):
    optimizer = "rowwise_adagrad"
    results = run_ranks(train_sharded, world, sharding, optimizer, "one_hot", 1, False)
    assert_equal(results, train_plain(world, optimizer, "one_hot"))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("kind", ["multi_hot", "weighted"])
def test_optimizers_and_bags(optimizer, kind):
    results = run_ranks(train_sharded, 2, "mixed", optimizer, kind, 1, False)
    assert_equal(results, train_plain(2, optimizer, kind))


@pytest.mark.parametrize(("micro", "reverse", "kind"), [(3, False, "one_hot"), (4, True, "multi_hot"), (12, True, "one_hot")])
def test_microbatches(micro, reverse, kind):
    results = run_ranks(train_sharded, 2, "mixed", "rowwise_adagrad", kind, micro, reverse)
    assert_equal(results, train_plain(2, "rowwise_adagrad", kind))


def test_more_microbatches_send_no_more_rows():
    sent = [run_ranks(train_sharded, 2, "row_wise", "sgd", "one_hot", m, False)[0][2] for m in (1, 4)]
    assert sent[0]["rows"] == sent[1]["rows"] > 0
    assert sent[0]["row_gradients"] == sent[1]["row_gradients"] > 0


def test_control_a_lost_row_gradient_is_seen():
    results = run_ranks(train_sharded, 2, "row_wise", "rowwise_adagrad", "one_hot", 1, False, "lost gradient")
    with pytest.raises(AssertionError):
        assert_equal(results, train_plain(2, "rowwise_adagrad", "one_hot"))
