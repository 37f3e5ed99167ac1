"""``recpipe profile``: trains a few recorded steps in several meshes and cuts, and keeps what every action took."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, islice
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from recpipe.batch import Batch
from recpipe.comm import Groups
from recpipe.comm.lane import Lane
from recpipe.comm.traffic import Traffic
from recpipe.errors import ConfigError
from recpipe.model import Model, StepContext
from recpipe.model.block import Block
from recpipe.runtime.recorder import Recorder
from recpipe.schedule.ir import COMPUTE_OPS, Action, Op
from recpipe.schedule.profile import Cut, Line, MeshProfile, Profile
from recpipe.train.reading import read_epochs
from recpipe.train.setup import Job, build_job
from recpipe.train.whole_step import BATCH_NORM

logger = logging.getLogger(__name__)

COARSE, FINE = 2, 8
"""Microbatches of the two runs that a line is drawn through."""
WARM_UP, STEPS = 4, 12
_PER_MICROBATCH = (*COMPUTE_OPS, Op.EO, Op.EG)


Rows = Callable[[Job], Iterator[Batch]]
"""What each rank of a job trains on, without end."""


def measure_profile(cfg: Any, groups: Groups, rows: Rows | None = None) -> Profile:
    """Profiles the configured model on the ranks there are; collective, the same on every rank.

    Args:
        cfg: `recpipe.train.config.TrainConfig`.
        rows: None: the configured data, epoch after epoch.

    Raises:
        ConfigError: a block couples rows, so that no step may be cut.
    """
    if getattr(cfg.model, "batch_norm", False):
        raise ConfigError(
            f"{BATCH_NORM}, and recpipe profile measures steps that are cut in {COARSE} and {FINE} microbatches; "
            f"profile with model.batch_norm=false"
        )
    blocks = measure_blocks(cfg, groups)
    cuts: dict[str, Cut] = {}
    meshes: dict[str, MeshProfile] = {}
    for stages in (p for p in range(1, groups.world + 1) if groups.world % p == 0):
        for families in _families(stages):
            runs = [_Run(cfg, groups, rows or read_epochs, stages, family, m) for family in families for m in (COARSE, FINE)]
            job = runs[0].job
            cuts[str(job.place.placement.num_stages)] = _cut(runs, job)
            meshes.setdefault(str(stages), _exchange(runs))
    link, beside = measure_link(groups), runs[0].job.model.num_beside_rows
    return Profile(cfg.model.name, groups.world, _global_rows(cfg, groups), cuts, meshes, blocks=blocks, beside=beside, **link)


def _global_rows(cfg: Any, groups: Groups) -> int:
    """Rows of a step over all replicas: the same in every mesh that is profiled."""
    return int(cfg.batch_size) * (groups.world // int(cfg.mesh.stages))


def _exchange(runs: list[_Run]) -> MeshProfile:
    finest = next(run for run in runs if run.microbatches == FINE)
    first_use, early, row_bytes = finest.row_use()
    return MeshProfile(_lines(runs, lambda op: op.value.startswith(("E", "P"))), row_bytes, first_use, early)


def measure_blocks(cfg: Any, groups: Groups) -> list[float]:
    """Milliseconds of forward and backward of each block, one microbatch, all ranks at once; collective."""
    job = build_job(OmegaConf.merge(cfg, {"mesh": {"stages": 1, "replicas": None}}), groups)
    num_rows = max(1, cfg.batch_size // FINE)
    found = [_time_block(job.model, index, num_rows, job.tables.dtype) for index in range(len(job.model.blocks))]
    everyone = groups.gather_cpu(torch.tensor(found, dtype=torch.float64)).view(groups.world, -1)
    return [float(value) for value in everyone.median(0).values]


def _time_block(model: Model, index: int, num_rows: int, dtype: torch.dtype, rounds: int = 7) -> float:
    block, spec, times = model.blocks[index], model.boundaries[index], []
    assert isinstance(block, Block)
    shapes = dict(zip(spec.names, spec.shapes, strict=True))
    for _ in range(rounds):
        inputs = [torch.rand(num_rows, *shapes[name], dtype=dtype, requires_grad=name != "dense_BD") for name in block.inputs]
        start = time.perf_counter()
        made = block(*inputs, context=StepContext(training=True))
        outputs = [one for one in (made if isinstance(made, tuple) else (made,)) if one.requires_grad]
        wanted = [*(one for one in inputs if one.requires_grad), *block.parameters()]
        torch.autograd.grad([one.sum() for one in outputs], wanted, allow_unused=True)
        times.append(time.perf_counter() - start)
    return median(times) * 1000


def _families(stages: int) -> list[list[str]]:
    """For each number of stages that so many ranks can hold: families that run B, and I and W, on it."""
    return [["1f1b"]] if stages == 1 else [["1f1b", "zb_h1"], ["interleaved", "zbv"]]


class _Run:
    """One recorded training of a few steps."""

    def __init__(self, cfg: Any, groups: Groups, batches: Rows, stages: int, family: str, microbatches: int) -> None:
        settings = {"name": family, "microbatches": microbatches, "embedding": "ahead", "chunks": 2}
        rows = _global_rows(cfg, groups) * stages // groups.world
        mesh = {"stages": stages, "replicas": None}
        chosen = OmegaConf.merge(cfg, {"mesh": mesh, "schedule": settings, "batch_size": rows})
        self.job = job = build_job(chosen, groups)
        recorder = Recorder(job.traffic, job.place, WARM_UP, WARM_UP + STEPS)
        job.trainer.executor.recorder = recorder
        for _ in job.trainer.run(islice(batches(job), WARM_UP + STEPS + 1)):
            pass
        if groups.rank == 0:
            logger.info("profiled %s, %d ranks a pipeline, %d microbatches", family, stages, microbatches)
        self.rows = rows / microbatches
        self.microbatches = microbatches
        self._worked: list[tuple[Action, float]] = list(chain.from_iterable(groups.gather_objects(recorder.worked())))
        self._sent: list[tuple[Action, int]] = list(chain.from_iterable(groups.gather_objects(recorder.sent())))

    def medians(self) -> dict[tuple[Op, int], float]:
        """Milliseconds by op and stage."""
        found: dict[tuple[Op, int], list[float]] = defaultdict(list)
        for action, milliseconds in self._worked:
            found[action.op, action.stage].append(milliseconds)
        return {key: median(values) for key, values in found.items()}

    def row_use(self) -> tuple[list[float], float, float]:
        """Share of the late rows by microbatch; share that is early; bytes a consumer's rows take in a step, all owners."""
        late, early = [0.0] * self.microbatches, 0.0
        for action, size in self._sent:
            if action.op is Op.EO:
                late[action.microbatch] += size
            elif action.op is Op.PO:
                early += size
        remote = 1 - 1 / self.job.groups.world
        total = sum(late) + early
        if not total:
            return [1 / self.microbatches] * self.microbatches, 0.0, 0.0
        each = total / STEPS / self.job.place.num_consumers / remote
        return [size / sum(late) for size in late], early / total, each


def _cut(runs: list[_Run], job: Job) -> Cut:
    size = torch.empty(0, dtype=job.tables.dtype).element_size()
    partition = job.partition
    boundary = [float(job.model.boundaries[part.stop].row_numel + 1) * size for part in partition[:-1]]
    weights = [float(sum(p.numel() for b in part for p in job.model.blocks[b].parameters())) * size for part in partition]
    return Cut(_lines(runs, lambda op: op in COMPUTE_OPS or op is Op.OPT), boundary, weights, partition[0].stop)


def _lines(runs: list[_Run], wanted: Any) -> dict[str, Line]:
    """A line for each op and stage: through two sizes of microbatch, or level where an action happens once a step."""
    points: dict[tuple[Op, int], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for key, milliseconds in run.medians().items():
            if wanted(key[0]):
                points[key].append((run.rows, milliseconds))
    return {f"{op}{stage}": _line(found, op in _PER_MICROBATCH) for (op, stage), found in points.items()}


def _line(points: list[tuple[float, float]], slopes: bool) -> Line:
    by_rows: dict[float, list[float]] = defaultdict(list)
    for rows, milliseconds in points:
        by_rows[rows].append(milliseconds)
    (few, low), (many, high) = [(rows, sum(times) / len(times)) for rows, times in sorted(by_rows.items())]
    if not slopes:
        return (low + high) / 2, 0.0
    slope = max(0.0, (high - low) / (many - few))
    return max(0.0, low - slope * few), slope


def measure_link(groups: Groups, rounds: int = 7) -> dict[str, float]:
    """`alpha` in milliseconds and `bandwidth` between ranks 0 and 1, `exchange`: of all ranks at once; collective."""
    if groups.world == 1:
        return {"alpha": 0.0, "bandwidth": 1e9, "exchange": 1e9}
    small, large = torch.zeros(1), torch.zeros(1 << 20)
    quick, slow = (min(_round_trip(groups, tensor) for _ in range(rounds)) / 2 for tensor in (small, large))
    bandwidth = large.numel() * 4 / max(slow - quick, 1e-6) / 1000
    found = torch.tensor([quick * 1000, bandwidth, _exchange_rate(groups, rounds)], dtype=torch.float64)
    dist.broadcast(found, 0, group=groups.control)
    return dict(zip(("alpha", "bandwidth", "exchange"), found.tolist(), strict=True))


def _exchange_rate(groups: Groups, rounds: int) -> float:
    """Bytes a millisecond that a rank sends and receives in all-to-alls, one after the other, sent as rows are: in pieces."""
    size = 1 << 19
    send = torch.zeros(size * groups.world)
    receive = torch.empty_like(send)
    lane, sizes = Lane(groups.control, groups.rank, groups.world, Traffic(), "profile"), [size] * groups.world
    lane.all_to_all(send, sizes, sizes, receive, size).wait()
    start = time.perf_counter()
    for _ in range(rounds):
        lane.all_to_all(send, sizes, sizes, receive, size).wait()
    return 4 * size * (groups.world - 1) * rounds / (time.perf_counter() - start) / 1000


def _round_trip(groups: Groups, tensor: torch.Tensor) -> float:
    start = time.perf_counter()
    if groups.rank == 0:
        dist.send(tensor, 1, group=groups.control)
        dist.recv(tensor, 1, group=groups.control)
    elif groups.rank == 1:
        dist.recv(tensor, 0, group=groups.control)
        dist.send(tensor, 0, group=groups.control)
    return time.perf_counter() - start
