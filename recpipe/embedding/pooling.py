"""Pooling at the consumer: bags of received unique rows become one vector a feature, and back.

Suffixes: B rows, F features, N lookups, U unique rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_CHUNK_ROWS = 128
"""Rows of a microbatch whose gradients are summed at a time: what is copied and widened for that stays in a core's cache."""


@dataclass(frozen=True)
class Bags:
    """How the lookups of one microbatch form bags.

    Args:
        num_rows, num_features: B and F.
        lengths_FB: ids of each bag, feature-major; None where every bag has exactly one.
        weight_N: factor of each lookup (id weights, 1/length of mean bags); None where all are 1.
    """

    num_rows: int
    num_features: int
    lengths_FB: torch.Tensor | None = None
    weight_N: torch.Tensor | None = None

    @staticmethod
    def make(
        lengths_FB: torch.Tensor, num_features: int, mean: torch.Tensor | None, id_weight_N: torch.Tensor | None, one_hot: bool
    ) -> Bags:
        """Bags from lengths.

        Args:
            mean: bool of F, True where a feature is averaged; None where none is.
            id_weight_N: weights of ids, or None.
            one_hot: every length is 1.
        """
        num_rows = lengths_FB.numel() // max(num_features, 1)
        if one_hot:
            return Bags(num_rows, num_features, None, id_weight_N)
        weight_N = id_weight_N
        if mean is not None:
            share_FB = torch.where(mean.repeat_interleave(num_rows), 1.0 / lengths_FB.clamp(min=1).double(), 1.0)
            share_N = share_FB.repeat_interleave(lengths_FB)
            weight_N = share_N if weight_N is None else weight_N * share_N
        return Bags(num_rows, num_features, lengths_FB.long(), weight_N)

    def pool(self, rows_UD: torch.Tensor, inverse_N: torch.Tensor) -> torch.Tensor:
        """Sums the rows of each bag: B x F x D; an empty bag is zero."""
        dim = rows_UD.shape[1]
        if self.lengths_FB is None:
            rows = rows_UD.index_select(0, self._row_major(inverse_N))
            if self.weight_N is not None:
                rows = rows * self._row_major(self.weight_N).to(rows.dtype).unsqueeze(1)
            return rows.view(self.num_rows, self.num_features, dim)
        if inverse_N.numel() == 0:
            return rows_UD.new_zeros(self.num_rows, self.num_features, dim)
        offsets = self.lengths_FB.cumsum(0) - self.lengths_FB
        weight = self.weight_N
        # Sums of 16-bit rows are made in 32 bits, and on CPU only there.
        wide_UD = rows_UD.float() if rows_UD.dtype == torch.bfloat16 else rows_UD
        weight = None if weight is None else weight.to(wide_UD.dtype)
        bags = F.embedding_bag(inverse_N, wide_UD, offsets, mode="sum", per_sample_weights=weight).to(rows_UD.dtype)
        return bags.view(self.num_features, self.num_rows, dim).transpose(0, 1).contiguous()

    def unpool(self, grad_BFD: torch.Tensor, inverse_N: torch.Tensor, grad_UD: torch.Tensor) -> None:
        """Adds the gradient of each bag to that of its unique rows, in place."""
        if self.lengths_FB is None:
            self._unpool_one_hot(grad_BFD, inverse_N, grad_UD)
            return
        bag_N = torch.repeat_interleave(self.lengths_FB)
        row_N, feature_N = bag_N % max(self.num_rows, 1), bag_N // max(self.num_rows, 1)
        flat = row_N * self.num_features + feature_N
        grad_ND = grad_BFD.reshape(-1, grad_BFD.shape[2]).index_select(0, flat)
        if self.weight_N is not None:
            grad_ND = grad_ND * self.weight_N.to(grad_ND.dtype).unsqueeze(1)
        grad_UD.index_add_(0, inverse_N, grad_ND.to(grad_UD.dtype))

    def _unpool_one_hot(self, grad_BFD: torch.Tensor, inverse_N: torch.Tensor, grad_UD: torch.Tensor) -> None:
        index_N = self._row_major(inverse_N)
        size = _CHUNK_ROWS if grad_BFD.device.type == "cpu" else max(self.num_rows, 1)
        weight_N = None if self.weight_N is None else self._row_major(self.weight_N).to(grad_BFD.dtype)
        for k, rows_CFD in enumerate(grad_BFD.split(size)):
            lookups = slice(k * size * self.num_features, (k * size + len(rows_CFD)) * self.num_features)
            grad_ND = rows_CFD.reshape(-1, rows_CFD.shape[2])
            if weight_N is not None:
                grad_ND = grad_ND * weight_N[lookups].unsqueeze(1)
            grad_UD.index_add_(0, index_N[lookups], grad_ND.to(grad_UD.dtype))

    def _row_major(self, per_lookup_N: torch.Tensor) -> torch.Tensor:
        """One-hot lookups from feature-major to row-major order."""
        return per_lookup_N.view(self.num_features, self.num_rows).t().reshape(-1)
