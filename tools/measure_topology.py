"""Measures this machine for the planner and prints a topology file: python -m tools.measure_topology > conf/topology/mine.yaml

One rank's rates with one thread (or --threads), and the links between two gloo ranks over loopback. Takes about 10 seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from recpipe.planner.measure import best_of, rank_rates

SIZES = (1 << 12, 1 << 23)
"""Floats of the messages that give a link's latency and bandwidth."""


def _link_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    times = []
    for size in SIZES:
        send, receive = torch.ones(2 * size), torch.empty(2 * size)
        dist.all_to_all_single(receive, send)
        dist.barrier()
        times.append(best_of(lambda send=send, receive=receive: dist.all_to_all_single(receive, send), 9))
    if rank == 0:
        Path(f"{folder}/times").write_text(f"{times[0]} {times[1]}")
    dist.destroy_process_group()


def link() -> tuple[float, float]:
    """Microseconds of latency and GB/s each way between two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_link_rank, (folder,), nprocs=2, start_method="spawn")
        short, long = map(float, Path(f"{folder}/times").read_text().split())
    bandwidth = 4 * (SIZES[1] - SIZES[0]) / max(long - short, 1e-9)
    return max(0.0, short - 4 * SIZES[0] / bandwidth) * 1e6, bandwidth / 1e9


def main() -> None:
    """Prints the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", default="${launch.nproc}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rates = rank_rates()
    alpha, bandwidth = link()
    memory = psutil.virtual_memory().total / 1e9
    cores = os.cpu_count() or 1
    print(
        f"# This machine: {cores} cores, {options.threads} thread(s) a rank, gloo over loopback (tools/measure_topology.py)."
    )
    print("name: local\nnodes:\n  - count: 1")
    print(f"    ranks: {options.ranks}")
    print(f"    memory_gb: {memory / cores:.3g}  # of the machine, shared by as many ranks as it has cores")
    for name, value in rates.items():
        print(f"    {name}: {value:.4g}")
    tier = f"{{alpha_us: {alpha:.4g}, bandwidth_gbs: {bandwidth:.4g}}}"
    print(f"near: {tier}\nfar: {tier}\nhost: sync\nreserved: 0.1\nmeasured: true")


if __name__ == "__main__":
    main()
