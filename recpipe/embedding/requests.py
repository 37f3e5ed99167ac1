"""The consumer's side of a window: unique rows of a whole step, ordered by who owns them and when they are needed.

A step has M microbatches. A row travels with the first microbatch that uses it, its gradient after the last one
(in backward order). Both orders follow from one table of counts, `counts[owner, first, class, last]`, which is all that
an owner needs to know besides the row numbers themselves.

Suffixes: N lookups, U unique rows, P pieces (column blocks of unique rows), W ranks, M microbatches, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from recpipe.embedding.rowmap import RowMap


@dataclass(frozen=True)
class Requests:
    """What one consumer asks for in one step. Pieces are in arrival order: (first, owner, class, last).

    Args:
        counts_WMKM: pieces by owner, first use, class, last use.
        local_P: the row in its owner's tensor, in *message* order: (owner, first, class, last).
        unique_P: which unique row a piece belongs to, in arrival order.
        inverse_N: lookup -> unique row, one tensor a microbatch.
        num_unique: unique rows; they are numbered in arrival order of their first piece.
    """

    counts_WMKM: torch.Tensor
    local_P: torch.Tensor
    unique_P: torch.Tensor
    inverse_N: tuple[torch.Tensor, ...]
    num_unique: int

    @cached_property
    def unique_in_asking_order_P(self) -> torch.Tensor:
        """Unique row of each piece, in message order: as this rank asked owners for them."""
        return self.unique_P[regroup(self.counts_WMKM.transpose(0, 1), (1, 0, 2, 3))]


def make_requests(rowmap: RowMap, keys_N: Sequence[torch.Tensor], backward_position: Sequence[int]) -> Requests:
    """Dedups the keys of all microbatches and orders the pieces.

    Args:
        keys_N: global keys of each microbatch, any order, repeats allowed, may be empty.
        backward_position: for each microbatch its place in backward order (0 is backwarded first).
    """
    num_micro, num_classes = len(keys_N), len(rowmap.classes)
    keys_U, inverse = torch.unique(torch.cat(list(keys_N)), return_inverse=True)
    first_U, last_U = _uses(keys_N, inverse, backward_position, keys_U.numel())
    unique_P, owner_P, class_P, local_P = rowmap.pieces(keys_U)
    first_P, last_P = first_U[unique_P], last_U[unique_P]
    arrival_P = ((first_P * rowmap.world + owner_P) * num_classes + class_P) * num_micro + last_P
    shape = (num_micro, rowmap.world, num_classes, num_micro)
    counts = torch.bincount(arrival_P, minlength=num_micro * rowmap.world * num_classes * num_micro).view(shape)
    order_P = torch.argsort(arrival_P, stable=True)
    sorted_unique_P = unique_P[order_P]
    number_U = _renumber(sorted_unique_P, keys_U.numel(), rowmap.whole_rows)
    inverse = number_U[inverse]
    return Requests(
        counts_WMKM=counts.transpose(0, 1).contiguous(),
        local_P=local_P[order_P] if num_micro == 1 else local_P[order_P][regroup(counts, (1, 0, 2, 3))],
        unique_P=number_U[sorted_unique_P],
        inverse_N=inverse.split([keys.numel() for keys in keys_N]),
        num_unique=keys_U.numel(),
    )


def _uses(
    keys_N: Sequence[torch.Tensor], inverse: torch.Tensor, backward_position: Sequence[int], num_unique: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """First microbatch (forward order) and last backward position that touch each unique row."""
    if len(keys_N) == 1:
        zeros = torch.zeros(num_unique, dtype=torch.int64)
        return zeros, zeros
    sizes = torch.tensor([keys.numel() for keys in keys_N])
    micro_N = torch.repeat_interleave(sizes)
    back_N = torch.tensor(backward_position)[micro_N]
    first_U = torch.full((num_unique,), len(keys_N)).scatter_reduce_(0, inverse, micro_N, "amin")
    last_U = torch.zeros(num_unique, dtype=torch.int64).scatter_reduce_(0, inverse, back_N, "amax")
    return first_U, last_U


def _renumber(sorted_unique_P: torch.Tensor, num_unique: int, whole_rows: bool) -> torch.Tensor:
    """Numbers unique rows so that whole rows land where they are used: row number = place of arrival."""
    number_U = torch.empty(num_unique, dtype=torch.int64)
    if whole_rows:
        number_U[sorted_unique_P] = torch.arange(num_unique)
        return number_U
    place = torch.full((num_unique,), sorted_unique_P.numel())
    place.scatter_reduce_(0, sorted_unique_P, torch.arange(sorted_unique_P.numel()), "amin")
    number_U[torch.argsort(place)] = torch.arange(num_unique)
    return number_U


def regroup(counts: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Permutation that brings pieces from the order of `counts` to the order of its permuted dimensions.

    Args:
        counts: pieces in each cell; pieces lie in the C order of its cells.
        order: the dimensions of `counts` in their new order, outermost first.

    Returns:
        int64 indices: ``pieces[regroup(counts, order)]`` is in the new order; the order inside a cell is kept.
    """
    cells = torch.arange(counts.numel()).view(counts.shape).permute(*order).flatten()
    rank = torch.empty_like(cells)
    rank[cells] = torch.arange(cells.numel())
    return torch.argsort(rank[torch.repeat_interleave(counts.flatten())], stable=True)
