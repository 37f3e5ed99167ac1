"""Rows a second of recpipe beside TorchRec's train pipelines: same model, ids and processes, alternating blocks of steps.

    python tools/bench_torchrec.py --data FILE      # Criteo text; ids hashed to --rows
    python tools/bench_torchrec.py                  # synthetic ids with a heavy tail

Two gloo ranks, one thread each. DLRM with 26 tables, row-wise Adagrad for rows, SGD for the tower.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from recpipe.batch import Batch
from recpipe.data import Dataset
from recpipe.data.config import SCHEMAS as DATA
from recpipe.model.config import SCHEMAS as MODELS
from recpipe.train.config import TrainConfig
from recpipe.train.launch import launch_workers
from recpipe.train.setup import Job, build_job, init_processes

LR = 0.01


def main() -> int:
    args = _arguments()
    return launch_workers(measure, 2, vars(args))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="Criteo text file; without it ids are synthetic")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each table")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048, help="rows a rank and step")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of each contestant; the median is reported")
    parser.add_argument("--steps", type=int, default=12, help="steps of a block, the first three not timed")
    parser.add_argument("--out", default="", help="also write the result as JSON to this file")
    return parser.parse_args()


def measure(args: dict[str, Any]) -> int:
    """On each rank: builds the contestants and times them in turn."""
    cfg = _config(args)
    groups = init_processes(cfg.launch)
    window, pooled = build_job(cfg, groups), build_job(OmegaConf.merge(cfg, {"exchange": {"kind": "pooled"}}), groups)
    contestants = {
        "recpipe window": RecpipeRunner(window),
        "recpipe pooled": RecpipeRunner(pooled),
        "TorchRec TrainPipelineBase": TorchRecRunner(window, args, "TrainPipelineBase"),
        "TorchRec TrainPipelineSparseDist": TorchRecRunner(window, args, "TrainPipelineSparseDist"),
    }
    batches = [_batch(window.dataset, args["batch"], i * groups.world + groups.rank) for i in range(args["steps"] * 2)]
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for block in range(args["blocks"]):
        chosen = [batches[(block + i) % len(batches)] for i in range(args["steps"])]
        for name, runner in contestants.items():
            groups.barrier()
            seconds[name].append(runner.run(chosen))
    if groups.rank == 0:
        _print(seconds, args, window, pooled)
    dist.barrier()
    return 0


def _config(args: dict[str, Any]) -> Any:
    data = DATA["criteo" if args["data"] else "synthetic"]()
    cfg = OmegaConf.structured(TrainConfig(data=data, model=MODELS["dlrm"]()))
    settings: dict[str, Any] = {
        "model.embedding_dim": args["dim"],
        "model.dense_arch_layer_sizes": [512, 256, args["dim"]],
        "model.over_arch_layer_sizes": [512, 512, 256, 1],
        "model.dropout": 0.0,
        "optimizer.table.name": "rowwise_adagrad",
        "optimizer.table.learning_rate": LR,
        "optimizer.dense.name": "sgd",
        "optimizer.dense.learning_rate": LR,
        "batch_size": args["batch"],
    }
    if args["data"]:
        settings |= {"data.path": args["data"], "data.vocabulary": "hash", "data.hash_size": args["rows"]}
    else:
        settings |= {"data.num_train": 200_000, "data.min_ids": args["rows"], "data.max_ids": args["rows"]}
    for key, value in settings.items():
        OmegaConf.update(cfg, key, value)
    return cfg


def _batch(dataset: Dataset, size: int, index: int) -> Batch:
    total = dataset.num_rows("train") // size
    start = index % total * size
    return dataset.batch("train", 0, start, start + size)


class RecpipeRunner:
    """Our trainer on given batches, ids of the next step routed ahead."""

    def __init__(self, job: Job) -> None:
        self._trainer = job.trainer

    def run(self, batches: list[Batch]) -> float:
        """Median seconds of a step."""
        source = iter(batches)

        def prepare() -> Any:
            batch = next(source, None)
            return None if batch is None else self._trainer.prepare(batch)

        prepared, times = prepare(), []
        prepared.tables.request()
        while prepared is not None:
            start = time.perf_counter()
            _, prepared = self._trainer.train(prepared, prepare)
            times.append(time.perf_counter() - start)
        return statistics.median(times[3:-1])


class TorchRecRunner:
    """TorchRec's own DLRM behind DistributedModelParallel and one of its pipelines."""

    def __init__(self, job: Job, args: dict[str, Any], pipeline: str) -> None:
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.train_pipeline import train_pipelines
        from torchrec.models.dlrm import DLRMTrain
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        self._job = job
        model = DLRMTrain(self._dlrm(args))
        apply_optimizer_in_backward(RowWiseAdagrad, model.model.sparse_arch.parameters(), {"lr": LR, "eps": 1e-8})
        topology = Topology(world_size=job.groups.world, compute_device="cpu")
        sharders = self._sharders()
        plan = EmbeddingShardingPlanner(topology=topology).collective_plan(model, sharders, dist.GroupMember.WORLD)
        model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
        dense = [p for name, p in model.named_parameters() if "embedding_bags" not in name]
        optimizer = torch.optim.SGD(dense, lr=LR)
        self._make = lambda: getattr(train_pipelines, pipeline)(model, optimizer, torch.device("cpu"))

    def run(self, batches: list[Batch]) -> float:
        """Median seconds of a step."""
        pipeline, source, times = self._make(), self._stream(batches), []
        while True:
            start = time.perf_counter()
            try:
                pipeline.progress(source)
            except StopIteration:
                break
            times.append(time.perf_counter() - start)
        return statistics.median(times[3:-1])

    def _dlrm(self, args: dict[str, Any]) -> Any:
        from torchrec.models.dlrm import DLRM
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection

        tables = [
            EmbeddingBagConfig(
                name=t.name, embedding_dim=t.dim, num_embeddings=t.num_rows, feature_names=[t.feature]
            )
            for t in self._job.model.tables
        ]
        bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        return DLRM(bags, 13, [512, 256, args["dim"]], [512, 512, 256, 1], dense_device=torch.device("cpu"))

    def _sharders(self) -> list[Any]:
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

        return [EmbeddingBagCollectionSharder()]

    def _stream(self, batches: list[Batch]) -> Iterator[Any]:
        from torchrec.datasets.utils import Batch as TorchRecBatch
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        keys = [t.feature for t in self._job.model.tables]
        for batch in batches:
            jagged = KeyedJaggedTensor(keys=keys, values=batch.ids_N, lengths=batch.lengths_FB)
            yield TorchRecBatch(batch.dense_BD, jagged, batch.labels_B)


def _print(seconds: dict[str, list[float]], args: dict[str, Any], window: Job, pooled: Job) -> None:
    rows = args["batch"] * window.groups.world
    reference = min(statistics.median(s) for name, s in seconds.items() if name.startswith("TorchRec"))
    print(f"\n{'':34s}{'ms a step':>10s}{'min':>8s}{'max':>8s}{'rows/s':>10s}{'ratio':>8s}")
    result = {}
    for name, values in seconds.items():
        middle = statistics.median(values)
        result[name] = {"ms": 1e3 * middle, "rows_per_s": rows / middle, "ratio": reference / middle}
        low, high = 1e3 * min(values), 1e3 * max(values)
        print(f"{name:34s}{1e3 * middle:10.1f}{low:8.1f}{high:8.1f}{rows / middle:10,.0f}{reference / middle:8.2f}")
    sent = [job.traffic.total("ids", "rows", "row_gradients") / max(job.trainer.step, 1) for job in (window, pooled)]
    print(f"embedding bytes a rank and step: window {sent[0]:,.0f}, pooled {sent[1]:,.0f}, share {sent[0] / sent[1]:.3f}")
    result["bytes"] = {"window": sent[0], "pooled": sent[1], "share": sent[0] / sent[1]}
    if args["out"]:
        Path(args["out"]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
