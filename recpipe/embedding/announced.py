"""What ranks announce of a step's sizes, with a sum that the other side compares: a wrong count is an error, not wrong memory.

All later sizes of a step follow from these counts: rows, marks, gradients, column squares, and, from the header, messages
between stages. The sum rides on a number that is sent anyway, so that it costs no byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recpipe.errors import TrainingError

_BITS = 31
_MASK = (1 << _BITS) - 1
# A prime: no power of two, as one flipped bit would be, is lost.
_PRIME = _MASK


def packed(largest: int, total: int) -> int:
    """Two numbers in one int64: `largest`, below 2^31, and `total` modulo 2^31 - 1."""
    assert 0 <= largest <= _MASK, f"{largest} rows asked of one rank in a step"
    return largest | (total % _PRIME) << _BITS


def unpacked(value: int) -> tuple[int, int]:
    """What `packed` was given."""
    return value & _MASK, value >> _BITS & _MASK


def check_counts(rank: int, totals: Sequence[int], headers: torch.Tensor, theirs_WX: torch.Tensor) -> None:
    """Compares what each rank said with what has arrived here.

    Args:
        rank: this one.
        totals: of each rank: the sum of its counts for this rank and of its header, modulo 2^31 - 1.
        headers: ranks x header.
        theirs_WX: ranks x counts.

    Raises:
        TrainingError: they differ, or a count is negative.
    """
    arrived = (theirs_WX.sum(1) + headers.sum(1)).tolist()
    for other, (said, got) in enumerate(zip(totals, arrived, strict=True)):
        if said != got % _PRIME or bool((theirs_WX[other] < 0).any()):
            raise TrainingError(
                f"rank {other} announced sizes with the sum {said} to rank {rank}, where they add up to {got}: a count was "
                f"changed on its way or in memory; nothing of this step was updated, go on from the last checkpoint"
            )


def check_own_counts(rank: int, asked: Sequence[int], num_pieces: int) -> None:
    """Raises TrainingError where the counts that this rank has announced are not those of its own requests."""
    if sum(asked) != num_pieces:
        raise TrainingError(
            f"rank {rank} announced {sum(asked)} rows to ranks 0 to {len(asked) - 1}, but asks for {num_pieces}: a count was "
            f"changed in memory; nothing of this step was updated, go on from the last checkpoint"
        )
