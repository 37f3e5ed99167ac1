"""recpipe as a contestant: the trainer that `recpipe train` builds, on rows given beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recpipe.batch import Batch
from recpipe.bench.rows import data_config, global_batches, my_batches
from recpipe.bench.settings import Contestant, Workload
from recpipe.comm import Groups
from recpipe.model.config import SCHEMAS as MODELS
from recpipe.train.config import TrainConfig
from recpipe.train.profile import measure_link, measure_profile
from recpipe.train.setup import Job, build_job

LEARNING_RATE = 0.01
DENSE_LAYERS, OVER_LAYERS = (512, 256), (512, 512, 256, 1)
CROSS_LAYERS, CROSS_RANK = 3, 512


def train_config(contestant: Contestant, workload: Workload) -> DictConfig:
    """The training configuration of a contestant."""
    cfg = OmegaConf.structured(TrainConfig(data=data_config(workload), model=MODELS["dlrm"]("dlrm")))
    OmegaConf.set_struct(cfg, True)
    settings: dict[str, Any] = {
        "model.embedding_dim": workload.dim,
        "model.dense_arch_layer_sizes": [*DENSE_LAYERS, workload.dim],
        "model.over_arch_layer_sizes": list(OVER_LAYERS),
        "optimizer.table.name": "rowwise_adagrad",
        "optimizer.table.learning_rate": LEARNING_RATE,
        "optimizer.dense.name": "sgd",
        "optimizer.dense.learning_rate": LEARNING_RATE,
        "batch_size": workload.global_batch // contestant.replicas,
        "mesh.stages": contestant.stages,
        "mesh.replicas": contestant.replicas,
        "schedule.microbatches": contestant.microbatches,
        "schedule.embedding": contestant.depth,
        "exchange.kind": contestant.kind,
    }
    if workload.model == "dcn_v2":
        settings |= {
            "model.interaction_type": "dcn",
            "model.dcn_num_layers": CROSS_LAYERS,
            "model.dcn_low_rank_dim": CROSS_RANK,
        }
    for key, value in settings.items():
        OmegaConf.update(cfg, key, value)
    for setting in contestant.settings:
        key, _, text = setting.partition("=")
        # Not merge_with_dotlist: it adds no table to `tables.per_table` and its like.
        OmegaConf.update(cfg, key, OmegaConf.from_dotlist([f"value={text}"]).value, merge=False)
    return cfg


class RecpipeSide:
    """A job at work, one step at a time."""

    def __init__(self, contestant: Contestant, workload: Workload) -> None:
        self.job = build_job(train_config(contestant, workload), Groups.create())
        self.period = workload.num_batches
        self._workload = workload
        self._results = self.job.trainer.run(self._rows(self.job))

    def _rows(self, job: Job) -> Iterator[Batch]:
        """This rank's rows of every step, without end."""
        batches = global_batches(self._workload, job.dataset)
        return my_batches(batches, job.place.consumer, job.place.num_consumers)

    def step(self) -> None:
        """Trains on the next batch."""
        next(self._results)

    def sent(self) -> Mapping[str, int]:
        """Bytes sent since the start, by purpose."""
        return self.job.traffic.sent

    @property
    def requests(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """What this contestant answers beside ``block``."""
        from recpipe.bench.exchange import ExchangeProbe
        from recpipe.bench.hot import profile

        return {
            **ExchangeProbe(self).requests,
            "profile": lambda **sizes: profile(self, **sizes),
            "measure_profile": lambda: asdict(measure_profile(self.job.cfg, self.job.groups, self._rows)),
            "measure_link": lambda: measure_link(self.job.groups),
        }
