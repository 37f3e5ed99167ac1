"""TorchRec as a contestant: its own DLRM behind DistributedModelParallel, placed by its planner, in one of its pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from recpipe.batch import Batch
from recpipe.bench.recpipe_side import CROSS_LAYERS, CROSS_RANK, DENSE_LAYERS, LEARNING_RATE, OVER_LAYERS
from recpipe.bench.rows import global_batches, my_batches, open_schema
from recpipe.bench.settings import STALE, Contestant, Workload
from recpipe.specs import Schema

_CPU = torch.device("cpu")
_EPS = 1e-8


class TorchRecSide:
    """A pipeline at work, one step at a time."""

    def __init__(self, contestant: Contestant, workload: Workload) -> None:
        dataset = open_schema(workload)
        model = _sharded(_model(workload, dataset.schema))
        dense = [parameter for name, parameter in model.named_parameters() if "embedding_bags" not in name]
        self._pipeline = _pipeline(contestant.kind, model, torch.optim.SGD(dense, lr=LEARNING_RATE))
        rows = my_batches(global_batches(workload, dataset), dist.get_rank(), workload.ranks)
        self._source = _stream(rows, list(dataset.schema.feature_names))

    def step(self) -> None:
        """Trains on the next batch."""
        self._pipeline.progress(self._source)

    def sent(self) -> Mapping[str, int]:
        """TorchRec does not count."""
        return {}

    @property
    def requests(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """What this contestant answers beside ``block``."""
        from recpipe.bench.hot import profile

        return {"profile": lambda **sizes: profile(self, **sizes)}


def _model(workload: Workload, schema: Schema) -> Any:
    from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature.name}",
            embedding_dim=workload.dim,
            num_embeddings=feature.num_ids,
            feature_names=[feature.name],
        )
        for feature in schema.features
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    sizes = (schema.num_dense, [*DENSE_LAYERS, workload.dim], list(OVER_LAYERS))
    if workload.model == "dcn_v2":
        model = DLRMTrain(DLRM_DCN(bags, *sizes, CROSS_LAYERS, CROSS_RANK, dense_device=_CPU))
    else:
        model = DLRMTrain(DLRM(bags, *sizes, dense_device=_CPU))
    rows = model.model.sparse_arch.parameters()
    apply_optimizer_in_backward(RowWiseAdagrad, rows, {"lr": LEARNING_RATE, "eps": _EPS})
    return model


def _sharded(model: Any) -> Any:
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

    sharders: list[Any] = [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(model, sharders, dist.GroupMember.WORLD)
    return DistributedModelParallel(model, device=_CPU, plan=plan, sharders=sharders)


def _pipeline(name: str, model: Any, optimizer: torch.optim.Optimizer) -> Any:
    from torchrec.distributed.train_pipeline import train_pipelines

    kind = getattr(train_pipelines, name)
    if name not in STALE:
        return kind(model, optimizer, _CPU)
    # It would stay synchronous for the first 900 steps.
    return _for_cpu(kind)(model, optimizer, _CPU, start_batch=0)


def _for_cpu(kind: Any) -> Any:
    """The semi-synchronous pipeline without what it takes for granted: a CUDA device, and streams to hand tensors to."""
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign, assignment]

    class Forward(kind._pipelined_forward_type):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._device = _CPU

    return type(kind.__name__, (kind,), {"_pipelined_forward_type": Forward})


def _stream(batches: Iterator[Batch], keys: list[str]) -> Iterator[Any]:
    from torchrec.datasets.utils import Batch as TorchRecBatch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    for batch in batches:
        jagged = KeyedJaggedTensor(keys=keys, values=batch.ids_N, lengths=batch.lengths_FB)
        yield TorchRecBatch(batch.dense_BD, jagged, batch.labels_B)
