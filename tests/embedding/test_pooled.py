"""The pooled exchange (TorchRec) against whole tables, and beside the window exchange in one model."""

from __future__ import annotations

import os

import pytest
import torch

from recpipe.comm import Groups, Traffic
from recpipe.embedding.layout import make_layout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.pooled import check_pooled
from recpipe.embedding.tables import ShardedTables
from recpipe.errors import ConfigError
from tests.embedding.plain import make_batch, table_rows
from tests.embedding.test_window import (
    DIM,
    STEPS,
    TYPES,
    lanes_of,
    loss_gradient,
    ranks_of,
    rows_of,
    specs_of,
    train_plain,
)
from tests.ranks import run_ranks

# A tenth of the other tests' rate: in float32 their steep loss makes rounding grow.
LR = 0.005


def layouts(specs, sharding, world, mixed):
    local = 2 if world == 4 else world
    out = []
    for i, spec in enumerate(specs):
        kind = [t for t in TYPES if t != "replicated"][i % 6] if sharding == "mixed" else sharding
        exchange = "window" if mixed and i % 2 else "pooled"
        ranks = ranks_of(kind, i, world, local)
        if kind == "column_wise":
            ranks = ranks[: DIM // 4]
        out.append(make_layout(spec, kind, ranks, local, exchange, 4))
    return out


def train(rank, world, sharding, optimizer, kind, micro, mixed):
    os.environ["LOCAL_WORLD_SIZE"] = str(2 if world == 4 else world)
    specs, groups, traffic = specs_of(kind), Groups.create(), Traffic()
    tables = ShardedTables(
        layouts(specs, sharding, world, mixed), RowOptimizer(optimizer, eps=1e-6),
        lambda t, a, b: table_rows(t, a, b, DIM, torch.float32), lanes_of(groups, traffic), torch.float32, groups.control,
    )  # fmt: skip
    outputs = []
    for step in range(STEPS):
        batch = make_batch(rows_of(rank, step), specs, 100 * step + rank, kind, torch.float32)
        window = tables.open(batch.microbatches(micro), header=(batch.num_rows,))
        window.request()
        assert window.headers.flatten().tolist() == [rows_of(r, step) for r in range(world)]
        window.lookup(LR)
        for m in range(micro):
            window.send_rows(m)
        got = [window.pool(m) for m in range(micro)]
        outputs.append(torch.cat(got))
        for m in range(micro):
            window.add_gradient(m, loss_gradient(got[m]))
            window.send_gradients(m)
        window.update(step + 1)
    entries = {
        name: (entry.shape, [(p.offsets, p.tensor.clone(), p.saved) for p in entry.pieces])
        for name, entry in tables.entries().items()
    }
    return outputs, entries, dict(traffic.sent)


def plain(world, optimizer, kind):
    return train_plain(world, optimizer, kind, torch.float32, l2=0.0, lr=LR)


def assert_same(results, expected):
    outputs, tables, rule = expected
    covered = {}
    for rank, (got, entries, _) in enumerate(results):
        for step in range(STEPS):
            torch.testing.assert_close(got[step], outputs[step][rank], atol=2e-6, rtol=2e-6)
        for name, (shape, pieces) in entries.items():
            table, tensor = int(name.split(".")[1][1:]), name.split(".")[2]
            whole = tables[table].data if tensor == "weight" else rule.sums[table]
            assert tuple(whole.shape) == shape
            for offsets, value, _ in pieces:
                part = whole[tuple(slice(o, o + n) for o, n in zip(offsets, value.shape, strict=True))]
                torch.testing.assert_close(value, part, atol=2e-6, rtol=2e-6)
                covered[name] = covered.get(name, 0) + value.numel()
    for name, count in covered.items():
        assert count >= torch.Size(results[0][1][name][0]).numel(), f"{name} is not wholly held"


@pytest.mark.parametrize(
    ("world", "sharding", "optimizer"),
    [
        (1, "table_wise", "rowwise_adagrad"),
        (2, "table_wise", "rowwise_adagrad"),
        (2, "row_wise", "rowwise_adagrad"),
        (4, "table_row_wise", "rowwise_adagrad"),
        (2, "column_wise", "adagrad"),
        (4, "table_column_wise", "adagrad"),
        (4, "grid", "sgd"),
        (4, "mixed", "adagrad"),
    ],
)
def test_every_type(world, sharding, optimizer):
    results = run_ranks(train, world, sharding, optimizer, "one_hot", 1, False)
    assert_same(results, plain(world, optimizer, "one_hot"))


@pytest.mark.parametrize("kind", ["multi_hot", "weighted"])
def test_beside_the_window_exchange_with_microbatches(kind):
    results = run_ranks(train, 2, "mixed", "adagrad", kind, 3, True)
    assert_same(results, plain(2, "adagrad", kind))


def test_refusals_name_the_table_and_the_way_out():
    spec = specs_of("one_hot")[0]
    layout = make_layout(spec, "column_wise", [0, 1], 1, "pooled", 4)
    with pytest.raises(ConfigError, match=r"t0.*one row-wise Adagrad state a block.*exchange=window"):
        check_pooled([layout], RowOptimizer("rowwise_adagrad"), torch.float32)
    small = make_layout(specs_of("one_hot")[3], "row_wise", [0, 1, 2, 3], 1, "pooled", 4)
    with pytest.raises(ConfigError, match=r"t3 has 3 rows, too few for every rank"):
        check_pooled([small], RowOptimizer("sgd"), torch.float32)
    with pytest.raises(ConfigError, match="float64"):
        check_pooled([layout], RowOptimizer("sgd"), torch.float64)
    with pytest.raises(ConfigError, match="no adam"):
        check_pooled([layout], RowOptimizer("adam"), torch.float32)
