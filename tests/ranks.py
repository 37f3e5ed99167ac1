"""Runs a function on several gloo ranks in processes of its own and gives what each rank returned."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(function: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """Calls ``function(rank, world, *args)`` on `world` ranks; raises with the first failing rank's trace."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank_main, (world, folder, function, args), nprocs=world, start_method="fork")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _rank_main(rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        result = function(rank, world, *args)
    except BaseException:
        raise RuntimeError(f"rank {rank}:\n{traceback.format_exc()}") from None
    torch.save(result, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
