"""Runs a configuration and the single-process reference side by side and measures how far apart they get.

Every rank trains the reference by itself on the whole global batches and compares what it holds: losses, dense weights and
optimizer state, its rectangles of every table and of the tables' optimizer state.

Where something is beyond the tolerance, a second reference adds the rows of each step in another order. What differs between
the two references is rounding and nothing else (a gradient that is zero but for rounding, which Adam divides by itself), and
the bound of that tensor follows it; see `Difference.bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch

from recpipe.model import build_model
from recpipe.train.feed import Feed
from recpipe.train.lr import LrPolicy
from recpipe.train.reading import read_epochs, whole_feed
from recpipe.train.reference import ReferenceTrainer
from recpipe.train.setup import Job, dense_optimizer, row_optimizer
from recpipe.train.state import dense_optimizer_state

DEFAULT_TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
KINDS = ("loss", "dense_weights", "dense_state", "rows", "row_state")
_TIMES_ROUNDING, _LARGEST_BOUND = 16, 1e-9
_PARTS = 3

Name = tuple[str, str]
"""One of `KINDS`, and what differs: a weight, a table."""


@dataclass(frozen=True)
class Difference:
    """How far one tensor is from that of the reference.

    Args:
        kind: of `KINDS`.
        where: name of the weight, its state, or the table.
        value: largest difference over max(size, value), where size is 1 and of optimizer state its largest value, if less;
            NaN where something is not finite.
        rounding: the same between two references that add rows in different orders; 0 where nobody looked.
    """

    kind: str
    where: str
    value: float
    rounding: float = 0.0

    def bound(self, tolerance: float) -> float:
        """What `value` may be: a few times the reference's own rounding where that is more than the tolerance, up to 1e-9."""
        return max(tolerance, min(_TIMES_ROUNDING * self.rounding, _LARGEST_BOUND))


def compare_with_reference(job: Job, steps: int) -> dict[str, float]:
    """Largest `Difference.value` of each of `KINDS` after `steps` steps, over all ranks; collective."""
    return largest(compare(job, steps, torch.inf))


def largest(differences: list[Difference]) -> dict[str, float]:
    """Largest difference of each kind; a NaN wins."""
    by_kind = {kind: [one.value for one in differences if one.kind == kind] for kind in KINDS}
    return {kind: float(torch.tensor([0.0, *values], dtype=torch.float64).max()) for kind, values in by_kind.items()}


def compare(job: Job, steps: int, tolerance: float) -> list[Difference]:
    """Every tensor's difference after `steps` steps, over all ranks; the same on every rank; collective.

    Args:
        tolerance: beyond it the reference's own rounding is measured, in float64.
    """
    feed = whole_feed(job)
    losses = _train_sharded(job, steps)
    reference = _train_reference(job, feed, steps)
    names = list(_tensors(reference))
    mine = _measure(job, losses, reference)
    values = torch.tensor([mine.get(name, 0.0) for name in names], dtype=torch.float64)
    gathered = job.groups.gather_cpu(values).view(job.groups.world, -1)
    # A NaN on any rank has to win.
    worst = torch.where(gathered.isnan().any(0), torch.nan, gathered.max(0).values).tolist()
    found = [Difference(*name, value) for name, value in zip(names, worst, strict=True)]
    if job.tables.dtype == torch.float64 and any(one.value > tolerance for one in found):
        return _with_rounding(found, reference, _train_reference(job, feed, steps, reorder=True))
    return found


def _with_rounding(found: list[Difference], one: ReferenceTrainer, other: ReferenceTrainer) -> list[Difference]:
    first, second = _tensors(one), _tensors(other)
    sizes = _sizes(first)
    names = [(d.kind, d.where) for d in found]
    rounding = [_difference(first[name], second[name], sizes[_family(name)]) for name in names]
    return [replace(d, rounding=value) for d, value in zip(found, rounding, strict=True)]


def _family(name: Name) -> Name:
    """What a tensor is compared in size with: optimizer state with all of its sort, as the second moments of all weights."""
    kind, where = name
    return (kind, where.rpartition(".")[2]) if kind in ("dense_state", "row_state") else (kind, "")


def _sizes(tensors: dict[Name, torch.Tensor]) -> dict[Name, float]:
    """By family, what is not small: 1, and for optimizer state in float64, often far smaller, its largest value up to 1."""
    sizes: dict[Name, float] = {}
    for name, value in tensors.items():
        is_state = name[0] in ("dense_state", "row_state") and value.dtype == torch.float64 and value.numel()
        size = min(1.0, float(value.abs().max())) if is_state else 1.0
        sizes[_family(name)] = max(sizes.get(_family(name), 1e-300), size)
    return sizes


def _positions(feed: Feed, steps: int) -> Iterator[tuple[int, int]]:
    """(epoch, step in the epoch) of the first `steps` steps."""
    for step in range(steps):
        yield divmod(step, feed.num_steps)


def _train_sharded(job: Job, steps: int) -> torch.Tensor:
    losses = [result.loss for result in job.trainer.run(islice(read_epochs(job), steps))]
    return job.groups.sum_cpu(torch.tensor(losses, dtype=torch.float64))


def _train_reference(job: Job, feed: Feed, steps: int, reorder: bool = False) -> ReferenceTrainer:
    """Args: reorder: adds the rows of a step in another order; in pieces, unless a block couples rows."""
    cfg, dtype = job.cfg, job.tables.dtype
    model = build_model(cfg.model, job.dataset.schema, seed=cfg.seed, dtype=dtype)
    reference = ReferenceTrainer(
        model,
        [model.init_rows(table, 0, table.num_rows, cfg.seed, dtype) for table in model.tables],
        row_optimizer(cfg.optimizer.table),
        dense_optimizer(cfg.optimizer.dense, (w for w in model.parameters() if w.requires_grad)),
        cfg.optimizer.table.learning_rate,
        LrPolicy(cfg.lr.lr_warmup_steps, cfg.lr.lr_decay_start, cfg.lr.lr_decay_steps),
        cfg.seed,
        cfg.optimizer.dense.clip_norm,
        parts=_PARTS if reorder and not model.couplings else 1,
        backwards=reorder and bool(model.couplings),
    )
    for epoch, step in _positions(feed, steps):
        start, stop = step * feed.global_batch, min((step + 1) * feed.global_batch, feed.num_rows)
        reference.train(job.dataset.batch("train", epoch, start, stop))
    return reference


def _tensors(reference: ReferenceTrainer) -> dict[Name, torch.Tensor]:
    """Everything that is compared, of a reference."""
    losses = torch.tensor(reference.losses, dtype=torch.float64)
    dense = dense_optimizer_state(reference.model, [reference.dense_optimizer])
    found: dict[Name, torch.Tensor] = {("loss", "loss"): losses}
    found |= {("dense_weights", name): value for name, value in reference.model.state_dict().items()}
    found |= {("dense_state", name): value for name, value in dense.items()}
    for spec, table, state in zip(reference.model.tables, reference.tables, reference.state, strict=True):
        found["rows", spec.name] = table
        found |= {("row_state", f"{spec.name}.{kind}"): value for kind, value in state.items()}
    return found


def _measure(job: Job, losses: torch.Tensor, reference: ReferenceTrainer) -> dict[Name, float]:
    """Differences of what this rank holds."""
    theirs = _tensors(reference)
    sizes = _sizes(theirs)
    ours: dict[Name, torch.Tensor] = {("loss", "loss"): losses}
    ours |= {("dense_weights", name): w for name, w in job.model.state_dict().items() if not w.is_meta}
    dense = dense_optimizer_state(job.model, job.trainer.dense_optimizers.values())
    ours |= {("dense_state", name): value for name, value in dense.items()}
    found = {name: _difference(value, theirs[name], sizes[_family(name)]) for name, value in ours.items()}
    return found | _tables(job, theirs, sizes)


def _tables(job: Job, theirs: dict[Name, torch.Tensor], sizes: dict[Name, float]) -> dict[Name, float]:
    found: dict[Name, float] = {}
    for name, entry in job.tables.entries().items():
        _, table, kind = name.split(".", 2)
        place = ("rows", table) if kind == "weight" else ("row_state", f"{table}.{kind}")
        parts = [
            _difference(piece.tensor, theirs[place][_rectangle(piece.offsets, piece.tensor.shape)], sizes[_family(place)])
            for piece in entry.pieces
        ]
        found[place] = float(torch.tensor([0.0, *parts], dtype=torch.float64).max())
    return found


def _rectangle(offsets: tuple[int, ...], shape: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(offsets, shape, strict=True))


def _difference(ours: torch.Tensor, theirs: torch.Tensor, size: float) -> float:
    """Largest |ours - theirs| / max(size, |theirs|); NaN where either is not finite."""
    if not ours.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float(((ours - theirs).abs() / theirs.abs().clamp(min=size)).max())


def told(differences: list[Difference], tolerance: float, say: Callable[[str], object]) -> bool:
    """Says what was found, a line a kind and one for each tensor that is beyond its bound or has one of its own.

    Returns:
        Whether everything is within its bound.
    """
    beyond = [one for one in differences if not one.value <= one.bound(tolerance)]
    for kind, value in largest(differences).items():
        worst = [one for one in beyond if one.kind == kind]
        names = ", ".join(one.where for one in worst[:4]) + (f" and {len(worst) - 4} more" if len(worst) > 4 else "")
        say(f"  {kind:<14} {value:.3g}" + (f"   beyond the tolerance: {names}" if worst else ""))
    for one in differences:
        if tolerance < one.value <= one.bound(tolerance):
            say(
                f"  {one.where} differs by {one.value:.3g}: by no more than its rounding, the reference itself differs by "
                f"{one.rounding:.3g} when it adds the rows of a step in another order"
            )
    return not beyond
