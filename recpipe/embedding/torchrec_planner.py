"""Asks TorchRec's own planner for a plan, given numbers of the machines. A second opinion for ours; nothing is sharded here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from recpipe.embedding.layout import SHARDING_TYPES
from recpipe.errors import PlanError
from recpipe.specs import TableSpec

_OURS = {"data_parallel": "replicated", "grid_shard": "grid"}


@dataclass(frozen=True)
class Machines:
    """What TorchRec's topology asks for; bytes, and bytes a second.

    Args:
        world, local_size: ranks, and ranks a node.
        cuda: GPUs, else CPUs.
        memory: of a rank.
        bandwidth: of memory.
        near, far: of links in a node and between nodes.
    """

    world: int
    local_size: int
    cuda: bool
    memory: float
    bandwidth: float
    near: float
    far: float


@dataclass(frozen=True)
class TorchRecTable:
    """A table of TorchRec's plan, in our names; `ranks` as its shards are listed, empty for a copy on each."""

    sharding: str
    ranks: tuple[int, ...]


def torchrec_plan(
    specs: Sequence[TableSpec], mean_ids: Sequence[float], batch_size: int, machines: Machines, optimizer: str
) -> dict[str, TorchRecTable]:
    """The plan of `EmbeddingShardingPlanner` with its default enumerator, proposers and partitioner.

    Args:
        mean_ids: pooling factor of each table.
        batch_size: rows of one rank.
        optimizer: of the rows, for the bytes of its state.

    Raises:
        PlanError: TorchRec finds none.
    """
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.types import PlannerError

    topology = Topology(
        world_size=machines.world,
        local_world_size=machines.local_size,
        compute_device="cuda" if machines.cuda else "cpu",
        hbm_cap=int(machines.memory) if machines.cuda else 0,
        ddr_cap=int(machines.memory),
        hbm_mem_bw=machines.bandwidth / 1e3,
        ddr_mem_bw=machines.bandwidth / 1e3,
        intra_host_bw=machines.near / 1e3,
        inter_host_bw=machines.far / 1e3,
    )
    constraints = {
        spec.name: ParameterConstraints(pooling_factors=[mean]) for spec, mean in zip(specs, mean_ids, strict=True)
    }
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints, debug=False)
    quiet, before = logging.getLogger("torchrec"), logging.getLogger("torchrec").level
    quiet.setLevel(logging.ERROR)
    try:
        found = planner.plan(_module(specs), [_sharder(optimizer)])
    except PlannerError as error:
        raise PlanError(f"TorchRec's planner: {str(error).splitlines()[0]}") from None
    finally:
        quiet.setLevel(before)
    return {name: _table(sharding) for plan in found.plan.values() for name, sharding in plan.items()}


def _module(specs: Sequence[TableSpec]) -> nn.Module:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(name=s.name, embedding_dim=s.dim, num_embeddings=s.num_rows, feature_names=[s.feature])
        for s in specs
    ]
    module = nn.Module()
    module.bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return module


def _sharder(optimizer: str):  # type: ignore[no-untyped-def]
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adam": EmbOptimType.ADAM,
    }
    return EmbeddingBagCollectionSharder(fused_params={"optimizer": kinds[optimizer]})


def _table(sharding) -> TorchRecTable:  # type: ignore[no-untyped-def]
    kind = _OURS.get(sharding.sharding_type, sharding.sharding_type)
    if kind not in SHARDING_TYPES:
        raise PlanError(f"TorchRec's planner chose {sharding.sharding_type}, which has no counterpart here")
    return TorchRecTable(kind, () if kind == "replicated" else tuple(sharding.ranks))
