"""Saves under each mesh and plan and resumes under each: the end, metrics included, must be that of one plain run.

    python tools/change_matrix.py                    # all 625 pairs of 5 meshes (1, 2 and 4 ranks) x 5 plans
    python tools/change_matrix.py --pairs 20 --seed 1

A checkpoint is written once for each of the 25 cases and copied for each resume. Where mesh and plan stay, the end must be
that of the undisturbed run to the bit. Rank processes are kept; each job makes process groups of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from tests.train.resuming import assert_bits, assert_close, assert_same_lines, lines, train, whole  # noqa: E402
from tests.train.test_resume import MESHES, PLANS, on_mesh  # noqa: E402

RANKS = max(world for world, _ in MESHES.values())
Case = tuple[str, str]


class Team:
    """Rank processes that stay; a job takes as many of them as it has ranks, all at once."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(RANKS, mp_context=get_context("fork"))

    def train(self, world: int, cfg: Any, stop_at: int | None = None) -> dict[str, Any]:
        """Trains on `world` ranks: rank 0's result with whole tensors, and the lines of metrics."""
        with tempfile.TemporaryDirectory() as folder:
            jobs = [self._pool.submit(_rank, rank, world, folder, cfg, stop_at) for rank in range(world)]
            errors = [error for job in jobs if (error := job.exception()) is not None]
            if errors:
                raise errors[0]
            results = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world)]
        return {**results[0], "tensors": whole(results), "lines": lines(results[0]["folder"])}


def _rank(rank: int, world: int, folder: str, cfg: Any, stop_at: int | None) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    try:
        torch.save(train(rank, world, cfg, stop_at), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


class Matrix:
    """The checkpoints of all cases, and what each case comes to without a stop.

    Args:
        base: directory for all runs.
        cases: (mesh, plan) pairs.
    """

    def __init__(self, base: Path, cases: list[Case]) -> None:
        self._base, self._team = base, Team()
        self.reference = self._team.train(*on_mesh(base / "reference", "1x1", "table_wise"))
        self._undisturbed = {case: self._team.train(*on_mesh(base / "-".join(case), *case)) for case in cases}
        for case in cases:
            world, cfg = on_mesh(self._saved(case), *case)
            assert self._team.train(world, cfg, 2 if world == 1 else 1)["step"] == 2

    def resume(self, begun: Case, other: Case) -> None:
        """Goes on from the checkpoint of `begun` as `other`. Raises AssertionError where the end differs."""
        folder = Path(shutil.copytree(self._saved(begun), self._base / "pair"))
        batch_size = on_mesh(folder, *begun)[1].batch_size
        try:
            done = self._team.train(*on_mesh(folder, *other, resume="auto", batch_size=batch_size))
        finally:
            shutil.rmtree(folder)
        assert done["step"] == 5 and done["progress"].rows == 66
        assert_close(done["tensors"], self.reference["tensors"], 1e-12)
        assert_same_lines(done["lines"], self.reference["lines"], 1e-12)
        if begun == other:
            assert_bits(done["tensors"], self._undisturbed[begun]["tensors"])
            assert done["lines"] == self._undisturbed[begun]["lines"]

    def _saved(self, case: Case) -> Path:
        return self._base / f"saved-{'-'.join(case)}"


def main() -> int:
    """Prints a line a pair that differs, and the count; exit code 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=0, help="0: all of them")
    parser.add_argument("--seed", type=int, default=0, help="order of the pairs")
    options = parser.parse_args()
    cases = list(itertools.product(MESHES, PLANS))
    pairs = list(itertools.product(cases, cases))
    random.Random(options.seed).shuffle(pairs)
    pairs, bad, begun = pairs[: options.pairs or None], 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="recpipe-matrix-") as base:
        matrix = Matrix(Path(base), cases)
        for number, (saved, resumed) in enumerate(pairs):
            try:
                matrix.resume(saved, resumed)
            except Exception:
                bad += 1
                print(f"{' '.join(saved)} -> {' '.join(resumed)}: DIFFERENT\n{traceback.format_exc()}", flush=True)
            if (number + 1) % 25 == 0 or number + 1 == len(pairs):
                print(f"{number + 1} pairs, {bad} different, {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
