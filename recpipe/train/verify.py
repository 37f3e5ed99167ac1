"""Runs a configuration and the single-process reference side by side and measures how far apart they get.

Every rank trains the reference by itself on the whole global batches and compares what it holds: losses, dense weights and
optimizer state, its rectangles of every table and of the tables' optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from recpipe.model import build_model
from recpipe.train.feed import Feed
from recpipe.train.lr import LrPolicy
from recpipe.train.reading import read_epochs, whole_feed
from recpipe.train.reference import ReferenceTrainer
from recpipe.train.setup import Job, dense_optimizer, row_optimizer
from recpipe.train.state import dense_optimizer_state

DEFAULT_TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


def compare_with_reference(job: Job, steps: int) -> dict[str, float]:
    """Largest difference over max(1, size) of each kind of value after `steps` steps, over all ranks; collective.

    Returns:
        ``loss``, ``dense_weights``, ``dense_state``, ``rows``, ``row_state``.
    """
    feed = whole_feed(job)
    losses = _train_sharded(job, steps)
    reference, reference_losses = _train_reference(job, feed, steps)
    worst = {
        "loss": _difference(losses, reference_losses),
        "dense_weights": _worst(
            (ours, theirs)
            for ours, theirs in zip(job.model.parameters(), reference.model.parameters(), strict=True)
            if not ours.is_meta
        ),
        "dense_state": _dense_state(job, reference),
        **_tables(job, reference),
    }
    values = torch.tensor(list(worst.values()), dtype=torch.float64)
    gathered = job.groups.gather_cpu(values).view(job.groups.world, -1)
    # A NaN on any rank has to win.
    largest = torch.where(gathered.isnan().any(0), torch.nan, gathered.max(0).values)
    return dict(zip(worst, largest.tolist(), strict=True))


def _positions(feed: Feed, steps: int) -> Iterator[tuple[int, int]]:
    """(epoch, step in the epoch) of the first `steps` steps."""
    for step in range(steps):
        yield divmod(step, feed.num_steps)


def _train_sharded(job: Job, steps: int) -> torch.Tensor:
    losses = [result.loss for result in job.trainer.run(islice(read_epochs(job), steps))]
    return job.groups.sum_cpu(torch.tensor(losses, dtype=torch.float64))


def _train_reference(job: Job, feed: Feed, steps: int) -> tuple[ReferenceTrainer, torch.Tensor]:
    cfg, dtype = job.cfg, job.tables.dtype
    model = build_model(cfg.model, job.dataset.schema, seed=cfg.seed, dtype=dtype)
    reference = ReferenceTrainer(
        model,
        [model.init_rows(table, 0, table.num_rows, cfg.seed, dtype) for table in model.tables],
        row_optimizer(cfg.optimizer.table),
        dense_optimizer(cfg.optimizer.dense, model.parameters()),
        cfg.optimizer.table.learning_rate,
        LrPolicy(cfg.lr.lr_warmup_steps, cfg.lr.lr_decay_start, cfg.lr.lr_decay_steps),
        cfg.seed,
        cfg.optimizer.dense.clip_norm,
    )
    losses = []
    for epoch, step in _positions(feed, steps):
        start, stop = step * feed.global_batch, min((step + 1) * feed.global_batch, feed.num_rows)
        losses.append(reference.train(job.dataset.batch("train", epoch, start, stop)))
    return reference, torch.tensor(losses, dtype=torch.float64)


def _dense_state(job: Job, reference: ReferenceTrainer) -> float:
    ours = dense_optimizer_state(job.model, job.trainer.dense_optimizers.values())
    theirs = dense_optimizer_state(reference.model, [reference.dense_optimizer])
    assert ours.keys() <= theirs.keys()
    return _worst((ours[name], theirs[name]) for name in ours)


def _tables(job: Job, reference: ReferenceTrainer) -> dict[str, float]:
    index = {spec.name: i for i, spec in enumerate(reference.model.tables)}
    rows, state = [0.0], [0.0]
    for name, entry in job.tables.entries().items():
        _, table, kind = name.split(".", 2)
        i = index[table]
        whole = reference.tables[i] if kind == "weight" else reference.state[i][kind]
        for piece in entry.pieces:
            part = whole[tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.tensor.shape, strict=True))]
            (rows if kind == "weight" else state).append(_difference(piece.tensor, part))
    return {"rows": _max(rows), "row_state": _max(state)}


def _worst(pairs: Any) -> float:
    return _max([0.0, *(_difference(ours, theirs) for ours, theirs in pairs)])


def _max(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).max())


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest |ours - theirs| / max(1, |theirs|); NaN where either is not finite."""
    if not ours.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float(((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max())
