"""Runs that stop and go on, for tests and tools: what every rank holds at the end, put together to whole tensors."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recpipe.comm import Groups
from recpipe.train.config_text import to_yaml
from recpipe.train.interrupt import Interruption
from recpipe.train.loop import TrainingLoop
from recpipe.train.report import Reporter
from recpipe.train.resume import check_data, find_source, place_run
from recpipe.train.run_dir import hold, make_run_dir
from recpipe.train.setup import build_job
from recpipe.train.state import everything
from tests.ranks import run_ranks

Tensors = dict[str, torch.Tensor]


class StopAt(Interruption):
    """An interruption that arrives when a step is done."""

    def __init__(self, step: int | None, current: Callable[[], int]) -> None:
        super().__init__(speaks=False)
        self._step, self._current = step, current

    @property
    def number(self) -> int | None:
        return signal.SIGTERM if self._step is not None and self._current() >= self._step else None

    @number.setter
    def number(self, value: int | None) -> None:
        """Set by the loop on ranks that were not told."""


def train(rank: int, world: int, cfg: Any, stop_at: int | None = None, break_it: Any = None) -> dict[str, Any]:
    """Trains in `run.dir`, from a checkpoint where `resume` says so; gives this rank's part of everything.

    Args:
        stop_at: only on the last rank: the others have to hear of it.
        break_it: called with the loop before it starts.
    """
    groups = Groups.create()
    source = find_source(cfg, groups)
    step = place_run(cfg, source)
    job = build_job(cfg, groups)
    if source is not None:
        check_data(source, job.dataset, cfg.resume_allow_grow)
    folder = make_run_dir(cfg, "train", groups, step)
    stop = StopAt(stop_at if rank == world - 1 else None, lambda: job.trainer.step)
    loop = TrainingLoop(job, folder, to_yaml(cfg), source, stop)
    if break_it is not None:
        break_it(loop)
    with hold(folder, rank), Reporter(folder if rank == 0 else None, loop.total_steps, "none", False) as reporter:
        loop.run(reporter)
    if not loop.interrupted:
        loop.save("final")
        loop.finish_saving()
    return {"pieces": pieces(job), "step": job.trainer.step, "progress": loop.progress, "folder": folder}


def pieces(job: Any) -> list[tuple[str, tuple[int, ...], tuple[int, ...], torch.Tensor]]:
    """Name, whole shape, offsets and values of everything that this rank holds."""
    found = []
    for name, value in everything(job.trainer).items():
        if isinstance(value, torch.Tensor):
            found.append((name, tuple(value.shape), (0,) * value.dim(), value.clone()))
        else:
            found += [(name, value.shape, piece.offsets, piece.tensor.clone()) for piece in value.pieces]
    return found


def whole(results: list[dict[str, Any]]) -> Tensors:
    """Whole tensors from the pieces of all ranks; copies must be equal."""
    tensors: Tensors = {}
    for name, shape, offsets, part in (piece for result in results for piece in result["pieces"]):
        target = tensors.setdefault(name, torch.full(shape, torch.nan, dtype=part.dtype))
        view = target[tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))]
        if not torch.isnan(view).any():
            assert torch.allclose(view, part, rtol=1e-6, atol=1e-9), f"{name}: copies differ"
        view.copy_(part)
    for name, tensor in tensors.items():
        assert not torch.isnan(tensor).any(), f"{name}: a part is missing"
    return tensors


def run(world: int, cfg: Any, stop_at: int | None = None, break_it: Any = None) -> dict[str, Any]:
    """Trains on `world` ranks; gives whole tensors, the step and the progress."""
    results = run_ranks(train, world, cfg, stop_at, break_it)
    return {**results[0], "tensors": whole(results)}


def assert_bits(ours: Tensors, theirs: Tensors) -> None:
    """Equal to the bit."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def assert_close(ours: Tensors, theirs: Tensors, tolerance: float) -> None:
    """Equal within a tolerance over max(1, size)."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        worst = float(((ours[name] - theirs[name]).abs() / theirs[name].abs().clamp(min=1)).max())
        assert worst <= tolerance, f"{name}: {worst}"


def lines(folder: Path) -> list[dict[str, Any]]:
    """What a run has written about its metrics, without what depends on time."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        line.pop("rows_per_s", None)
    return found


def assert_same_lines(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], tolerance: float) -> None:
    """The same lines; numbers within a tolerance over max(1, size)."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, float):
                assert abs(value - other[key]) <= tolerance * max(1.0, abs(other[key])), (key, one, other)
            else:
                assert value == other[key], (key, one, other)
