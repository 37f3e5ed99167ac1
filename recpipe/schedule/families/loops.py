"""The order in which a looped family walks its chunks: rounds of microbatches, chunk by chunk inside a round."""

from __future__ import annotations


def forward_walk(num_microbatches: int, per_round: int, chunks: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) pairs in forward order; the last round may be short."""
    total = num_microbatches
    starts = range(0, total, per_round)
    return [(c, m) for start in starts for c in range(chunks) for m in range(start, min(start + per_round, total))]


def backward_walk(num_microbatches: int, per_round: int, chunks: int) -> list[tuple[int, int]]:
    """The same with the chunks mirrored."""
    return [(chunks - 1 - c, m) for c, m in forward_walk(num_microbatches, per_round, chunks)]
