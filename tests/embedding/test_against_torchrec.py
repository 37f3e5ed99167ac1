"""The window exchange beside TorchRec's ShardedEmbeddingCollection, an independent implementation, where that one applies."""

from __future__ import annotations

import pytest
import torch

from recpipe.comm import Groups, Traffic
from recpipe.embedding.layout import make_layout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.tables import ShardedTables
from recpipe.embedding.torchrec_tables import _fused_params, _parameter_sharding
from tests.embedding.plain import make_batch, table_rows
from tests.embedding.test_window import DIM, lanes_of, loss_gradient, ranks_of, specs_of
from tests.ranks import run_ranks

LR, STEPS, ROWS = 0.01, 4, (5, 3)


def layouts_of(specs, sharding, world):
    return [
        make_layout(spec, sharding, ranks_of(sharding, i, world, world), world, col_align=4)
        for i, spec in enumerate(specs)
    ]


def ours(rank, world, sharding, optimizer):
    specs = specs_of("one_hot")[1:3]
    tables = ShardedTables(
        layouts_of(specs, sharding, world), RowOptimizer(optimizer, eps=1e-6),
        lambda t, a, b: table_rows(t, a, b, DIM, torch.float32), lanes_of(Groups.create(), Traffic()),
    )  # fmt: skip
    for step in range(STEPS):
        batch = make_batch(ROWS[rank], specs, 10 * step + rank, "one_hot", torch.float32)
        window = tables.open([batch], header=())
        window.request()
        window.lookup(LR)
        window.send_rows(0)
        window.add_gradient(0, loss_gradient(window.pool(0)))
        window.send_gradients(0)
        window.update(step + 1)
    return {name: [(p.offsets, p.tensor.clone()) for p in e.pieces] for name, e in tables.entries().items()}


def theirs(rank, world, sharding, optimizer):
    from torch import distributed as dist
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embedding import ShardedEmbeddingCollection
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    set_gradient_division(False)
    specs = specs_of("one_hot")[1:3]
    configs = [
        EmbeddingConfig(name=s.name, embedding_dim=DIM, num_embeddings=s.num_rows, feature_names=[s.feature]) for s in specs
    ]
    layouts = layouts_of(specs, sharding, world)
    tables = ShardedEmbeddingCollection(
        EmbeddingCollection(tables=configs, device=torch.device("meta")),
        {s.name: _parameter_sharding(layout) for s, layout in zip(specs, layouts, strict=True)},
        ShardingEnv.from_process_group(dist.group.WORLD),
        {**_fused_params(RowOptimizer(optimizer, eps=1e-6)), "learning_rate": LR},
        torch.device("cpu"),
    )
    state = {s.name: tables.state_dict()[f"embeddings.{s.name}.weight"] for s in specs}
    for index, spec in enumerate(specs):
        for shard in state[spec.name].local_shards():
            row, col = shard.metadata.shard_offsets
            rows, cols = shard.tensor.shape
            shard.tensor.copy_(table_rows(index, row, row + rows, DIM, torch.float32)[:, col : col + cols])
    for step in range(STEPS):
        batch = make_batch(ROWS[rank], specs, 10 * step + rank, "one_hot", torch.float32)
        jagged = KeyedJaggedTensor([s.feature for s in specs], batch.ids_N, lengths=batch.lengths_FB)
        context = tables.create_context()
        inputs = tables.input_dist(context, jagged).wait().wait()
        out = tables.output_dist(context, tables.compute(context, inputs)).wait()
        rows = torch.cat([out[s.feature].values() for s in specs])
        rows.backward(loss_gradient(rows.detach()))
    return {
        f"tables.{name}.weight": [(tuple(s.metadata.shard_offsets), s.tensor.clone()) for s in sharded.local_shards()]
        for name, sharded in state.items()
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise"])
def test_same_rows_after_training(sharding, optimizer):
    mine = run_ranks(ours, 2, sharding, optimizer)
    other = run_ranks(theirs, 2, sharding, optimizer)
    compared = 0
    for rank in range(2):
        for name, shards in other[rank].items():
            held = dict(mine[rank][name])
            for offsets, tensor in shards:
                torch.testing.assert_close(held[offsets], tensor, atol=1e-6, rtol=1e-6)
                compared += tensor.numel()
    assert compared == sum(s.num_elements for s in specs_of("one_hot")[1:3])
