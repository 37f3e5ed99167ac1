"""How long training stands still for a checkpoint, beside plain `torch.distributed.checkpoint` of the same tensors.

    python tools/bench_checkpoint.py --ranks 2 --gigabytes 0.5

Each rank holds its rows of one table and their Adagrad sums. The ways take turns, several rounds after one that does not count;
medians. Beside training, "copy" is the time until training goes on; "until written" is that of all, with nothing beside it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

from recpipe.comm import Groups  # noqa: E402
from recpipe.embedding.state import Entry, Piece  # noqa: E402
from recpipe.train.checkpoint_saver import Content, Saver  # noqa: E402
from recpipe.train.config import CheckpointConfig  # noqa: E402
from tests.ranks import run_ranks  # noqa: E402

Wait = Callable[[], Any] | None


def measure(rank: int, world: int, folder: str, gigabytes: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round."""
    groups = Groups.create()
    ways = make_ways(groups, Path(folder), gigabytes)
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for way, save in ways.items():
            groups.barrier()
            begun = time.monotonic()
            wait = save(f"step-{number}")
            found = {way if wait is None else f"{way}: copy": time.monotonic() - begun}
            if wait is not None:
                wait()
                found[f"{way}: until written"] = time.monotonic() - begun
            for name, spent in found.items():
                seconds.setdefault(name, []).append(spent)
        groups.barrier()
        if rank == 0:
            for path in Path(folder).glob("*/step-*"):
                shutil.rmtree(path)
    return {way: spent[1:] for way, spent in seconds.items()}


def make_ways(groups: Groups, folder: Path, gigabytes: float) -> dict[str, Callable[[str], Wait]]:
    """What saves this rank's part of the same tensors under a name; gives what to wait for where it is not done then."""
    dim, world = 64, groups.world
    rows = int(gigabytes * 1e9 / (2 * 4 * dim)) // world
    mine = {name: torch.randn(rows, dim) for name in ("weight", "sum")}
    entries = {
        n: Entry((rows * world, dim), t.dtype, (Piece((groups.rank * rows, 0), t, True),)) for n, t in mine.items()
    }
    mesh = init_device_mesh("cpu", (world,))
    plain = {name: DTensor.from_local(tensor, mesh, [Shard(0)]) for name, tensor in mine.items()}
    content, aside = Content(entries, {}, {}), dist.new_group(backend="gloo")
    now, beside = (Saver(CheckpointConfig(async_save=flag), folder / f"{flag}", groups) for flag in (False, True))

    def ours(name: str) -> Wait:
        now.save(name, content)
        return None

    def ours_beside(name: str) -> Wait:
        beside.save(name, content)
        return beside.finish

    def theirs(name: str) -> Wait:
        dcp.save(plain, checkpoint_id=f"{folder}/plain/{name}")
        return None

    def theirs_beside(name: str) -> Wait:
        return dcp.async_save(plain, checkpoint_id=f"{folder}/beside/{name}", process_group=aside).result

    return {
        "recpipe": ours,
        "DCP `save`": theirs,
        "recpipe, `async_save`": ours_beside,
        "DCP `async_save`": theirs_beside,
    }


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
