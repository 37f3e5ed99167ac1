"""How long training stands still for a checkpoint, beside a plain `torch.distributed.checkpoint.save` of the same tensors.

    python tools/bench_checkpoint.py --ranks 2 --gigabytes 0.5

Each rank holds its rows of one table and their Adagrad sums. The three ways take turns, several rounds; medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

from recpipe.comm import Groups  # noqa: E402
from recpipe.embedding.state import Entry, Piece  # noqa: E402
from recpipe.train.checkpoint_saver import Content, Saver  # noqa: E402
from recpipe.train.config import CheckpointConfig  # noqa: E402
from tests.ranks import run_ranks  # noqa: E402

WAYS = ("recpipe", "recpipe, beside training: copy", "recpipe, beside training: until written", "plain DCP save")


def measure(rank: int, world: int, folder: str, gigabytes: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round."""
    groups, dim = Groups.create(), 64
    rows = int(gigabytes * 1e9 / (2 * 4 * dim))
    mine = {name: torch.randn(rows // world, dim) for name in ("weight", "sum")}
    shape = (rows // world * world, dim)
    entries = {n: Entry(shape, t.dtype, (Piece((rank * (rows // world), 0), t, True),)) for n, t in mine.items()}
    mesh = init_device_mesh("cpu", (world,))
    plain = {name: DTensor.from_local(tensor, mesh, [Shard(0)]) for name, tensor in mine.items()}
    settings = [CheckpointConfig(async_save=flag) for flag in (False, True)]
    savers = [Saver(one, Path(folder) / f"{i}", groups) for i, one in enumerate(settings)]
    content = Content(entries, {}, {})
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        _timed(seconds[WAYS[0]], groups, savers[0].save, f"step-{number}", content)
        begun = time.monotonic()
        _timed(seconds[WAYS[1]], groups, savers[1].save, f"step-{number}", content)
        savers[1].finish()
        seconds[WAYS[2]].append(time.monotonic() - begun)
        _timed(seconds[WAYS[3]], groups, dcp.save, plain, checkpoint_id=f"{folder}/plain-{number}")
        if rank == 0:
            for path in (*Path(folder).glob("?/step-*"), *Path(folder).glob("plain-*")):
                shutil.rmtree(path)
    return seconds


def _timed(into: list[float], groups: Groups, function: Any, *args: Any, **kwargs: Any) -> None:
    groups.barrier()
    begun = time.monotonic()
    function(*args, **kwargs)
    into.append(time.monotonic() - begun)


def main() -> None:
    """Prints a table for docs/checkpoints.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gigabytes", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recpipe-bench-") as folder:
        found = run_ranks(measure, options.ranks, folder, options.gigabytes, options.rounds)[0]
    print(f"{options.ranks} ranks, {options.gigabytes} GB in all, {options.rounds} rounds\n")
    print("| | s per GB (median) | least | most |\n|---|---|---|---|")
    for way, seconds in found.items():
        per_gb = [one / options.gigabytes for one in seconds]
        print(f"| {way} | {statistics.median(per_gb):.2f} | {min(per_gb):.2f} | {max(per_gb):.2f} |")


if __name__ == "__main__":
    main()
