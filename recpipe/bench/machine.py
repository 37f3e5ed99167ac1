"""What the machine could do: GEMM speed and memory bandwidth with all ranks at it together, and what a step needs of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from recpipe.bench.rows import global_batches, open_schema
from recpipe.bench.settings import Contestant, Workload
from recpipe.planner.measure import best_of

_GEMM, _REPEATS = 1024, 8
_COPY_FLOATS = 32 << 20


class Machine:
    """No contestant: it measures, and counts the work of a step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    def requests(self) -> dict[str, Callable[..., dict[str, Any]]]:
        return {"measure": self.measure}

    def measure(self) -> dict[str, Any]:
        """A second of this rank: ``flops``, ``flops16``, ``bandwidth``; a step of all: ``step_flops``, ``table_bytes``."""
        return {
            "flops": gemm_flops(torch.float32),
            "flops16": gemm_flops(torch.bfloat16),
            "bandwidth": copy_bandwidth(),
            "step_flops": step_flops(self._workload),
            "table_bytes": table_bytes(self._workload),
        }


def gemm_flops(dtype: torch.dtype) -> float:
    """Operations a second of a large product, the best of several."""
    a, b, out = (torch.ones(_GEMM, _GEMM, dtype=dtype) for _ in range(3))
    return 2 * _GEMM**3 / best_of(lambda: torch.mm(a, b, out=out), _REPEATS)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy far larger than the caches, the best of several."""
    source, target = torch.ones(_COPY_FLOATS), torch.zeros(_COPY_FLOATS)
    return 2 * 4 * _COPY_FLOATS / best_of(lambda: target.copy_(source), _REPEATS)


def step_flops(workload: Workload) -> float:
    """Operations of the tower's products in a step: the backward pass has twice those of the forward pass."""
    from recpipe.bench.recpipe_side import train_config
    from recpipe.model import build_model

    cfg = train_config(Contestant("", "window", workload.ranks), workload)
    model = build_model(cfg.model, open_schema(workload).schema, seed=0, dtype=torch.float32, device="meta")
    return 3.0 * sum(model.row_flops) * workload.global_batch


def table_bytes(workload: Workload) -> float:
    """Bytes that tables cannot avoid to move in a step, in the mean over the batches.

    A unique row is read once for the lookup, and read and written once for the update; every bag is written once, and its
    gradient read once.
    """
    batches = global_batches(workload, open_schema(workload))
    features = batches[0].lengths_FB.numel() // batches[0].num_rows
    unique = sum(ids.unique().numel() for batch in batches for ids in batch.ids_N.view(features, -1)) / len(batches)
    bags = workload.global_batch * features
    return 4.0 * workload.dim * (3 * unique + 2 * bags)
