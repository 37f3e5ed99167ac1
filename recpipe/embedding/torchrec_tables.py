"""Builds TorchRec's `ShardedEmbeddingBagCollection` from our layouts. The only place that knows TorchRec's plan types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from recpipe.embedding.layout import TableLayout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.errors import ConfigError

_NAMES = {"grid": "grid_shard"}
_BY_NODE = ("table_row_wise", "grid")


def make_sharded_bags(layouts: Sequence[TableLayout], optimizer: RowOptimizer, group: dist.ProcessGroup) -> Any:
    """A sharded collection with fused updates; its tables were never whole (meta device). Gradients are summed over ranks.

    Args:
        layouts: one a feature.
        optimizer: sgd, adagrad or rowwise_adagrad.
        group: all ranks.
    """
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    _check_nodes(layouts, group)
    # TorchRec divides row gradients by the world size unless told otherwise; our loss has its divisor already.
    set_gradient_division(False)
    configs = [
        EmbeddingBagConfig(
            name=layout.spec.name,
            embedding_dim=layout.spec.dim,
            num_embeddings=layout.spec.num_rows,
            feature_names=[layout.spec.feature],
            pooling=PoolingType.SUM,
        )
        for layout in layouts
    ]
    return ShardedEmbeddingBagCollection(
        module=EmbeddingBagCollection(tables=configs, is_weighted=True, device=torch.device("meta")),
        table_name_to_parameter_sharding={layout.spec.name: _parameter_sharding(layout) for layout in layouts},
        env=ShardingEnv.from_process_group(group),
        fused_params=_fused_params(optimizer),
        device=torch.device("cpu"),
    )


def _check_nodes(layouts: Sequence[TableLayout], group: dist.ProcessGroup) -> None:
    """TorchRec takes the size of a node from LOCAL_WORLD_SIZE; a layout made for other nodes would fail deep inside it."""
    from torchrec.distributed.comm import get_local_size

    local_size = get_local_size(dist.get_world_size(group))
    for layout in layouts:
        node = len({shard.row_start for shard in layout.shards}) if layout.sharding in _BY_NODE else local_size
        if node != local_size:
            raise ConfigError(
                f"exchange=pooled: table {layout.spec.name} is cut for nodes of {node} ranks, but a node has {local_size} "
                f"here (LOCAL_WORLD_SIZE); set tables.local_size={local_size} or use exchange=window"
            )


def _parameter_sharding(layout: TableLayout) -> Any:
    from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.types import ParameterSharding

    shards = sorted(layout.shards, key=lambda s: (s.col_start, s.row_start))
    metadata = [
        ShardMetadata([s.row_start, s.col_start], [s.num_rows, s.num_cols], f"rank:{s.rank}/cpu") for s in shards
    ]
    return ParameterSharding(
        sharding_type=_NAMES.get(layout.sharding, layout.sharding),
        compute_kernel=EmbeddingComputeKernel.FUSED.value,
        ranks=[s.rank for s in shards],
        sharding_spec=EnumerableShardingSpec(metadata),
    )


def _fused_params(optimizer: RowOptimizer) -> dict[str, Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }
    return {"optimizer": kinds[optimizer.name], "learning_rate": 0.0, "eps": optimizer.eps}
