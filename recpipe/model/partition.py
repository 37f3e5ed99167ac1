"""Cutting the ordered blocks of a tower in stages: by cost, or where the user says.

A partition is a tuple of ``range``, one a stage, that covers all blocks in order. Costs may be measured milliseconds or
the counted operations of :func:`block_flops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch.utils.flop_counter import FlopCounterMode

from recpipe.errors import ConfigError, nearest
from recpipe.model.block import Block
from recpipe.model.boundaries import RowShape
from recpipe.model.context import StepContext

Partition = tuple[range, ...]


def partition_by_cost(costs: Sequence[float], num_stages: int, cut_costs: Sequence[float] | None = None) -> Partition:
    """The contiguous partition whose costliest stage costs least, exact; among equals the one with the least traffic.

    Args:
        costs: of each block, at least 0.
        num_stages: every stage gets at least one block.
        cut_costs: of a cut before each block (entry 0 is not used), for instance the size of its message.

    Raises:
        ConfigError: more stages than blocks.
    """
    num_blocks = len(costs)
    _require_stages(num_blocks, num_stages)
    total = list(accumulate(costs, initial=0.0))
    bound = _smallest_bound(total, num_stages)
    traffic = list(cut_costs) if cut_costs is not None else [0.0] * num_blocks
    return _ranges(_least_traffic(total, num_stages, bound, traffic), num_blocks)


def _smallest_bound(total: list[float], num_stages: int) -> float:
    """Least possible cost of the costliest stage; ``total[b]`` is the cost of the blocks before b."""
    num_blocks = len(total) - 1
    worst = {stop: total[stop] for stop in range(1, num_blocks + 1)}
    for stage in range(1, num_stages):
        worst = {
            stop: min(max(worst[start], total[stop] - total[start]) for start in range(stage, stop))
            for stop in range(stage + 1, num_blocks + 1)
        }
    return worst[num_blocks]


def _least_traffic(total: list[float], num_stages: int, bound: float, traffic: list[float]) -> tuple[int, ...]:
    """First blocks of the stages, no stage above the bound, smallest sum of traffic at the cuts."""
    num_blocks = len(total) - 1
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        stop: (0.0, (0,)) for stop in range(1, num_blocks + 1) if total[stop] <= bound
    }
    for _ in range(1, num_stages):
        best = {
            stop: min((sent + traffic[start], (*starts, start)) for start, (sent, starts) in options)
            for stop in range(1, num_blocks + 1)
            if (options := [o for o in best.items() if o[0] < stop and total[stop] - total[o[0]] <= bound])
        }
    return best[num_blocks][1]


def partition_by_name(blocks: Sequence[Block], first_blocks: Sequence[str]) -> Partition:
    """Stages that start at the named blocks; the first stage starts at block 0 and is not named.

    Raises:
        ConfigError: a name is unknown, the first block's, or out of order.
    """
    names = [block.name for block in blocks]
    for name in first_blocks:
        if name not in names:
            raise ConfigError(f"stage cut before block {name}: the model has no such block; {nearest(name, names)}")
    starts = [0, *(names.index(name) for name in first_blocks)]
    if any(later <= earlier for earlier, later in pairwise(starts)):
        raise ConfigError(
            f"stage cuts before {', '.join(first_blocks)}: each must lie behind the one before it and behind the first "
            f"block; the order is {', '.join(names)}"
        )
    return _ranges(tuple(starts), len(names))


def block_flops(blocks: Sequence[Block], shapes: dict[str, RowShape], dtype: torch.dtype) -> list[int]:
    """Floating point operations of each block's forward pass for one row, by running blocks on the meta device."""
    return [_flops(block, shapes, dtype) for block in blocks]


def _flops(block: Block, shapes: dict[str, RowShape], dtype: torch.dtype) -> int:
    tensors = [torch.empty(1, *shapes[name], dtype=dtype, device="meta") for name in block.inputs]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        block(*tensors, context=StepContext(training=False))
    flops: int = counter.get_total_flops()
    return flops


def _require_stages(num_blocks: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_blocks:
        raise ConfigError(
            f"mesh.stages={num_stages}: the model has {num_blocks} blocks, so between 1 and {num_blocks} stages; "
            f"ask for fewer stages or a deeper model"
        )


def _ranges(starts: tuple[int, ...], num_blocks: int) -> Partition:
    return tuple(range(start, stop) for start, stop in pairwise((*starts, num_blocks)))
