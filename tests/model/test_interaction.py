"""The custom backward passes against plain autograd and finite differences."""

from __future__ import annotations

import pytest
import torch

from recpipe.model.fm import pair_sum
from recpipe.model.interaction import mirror_positions, pair_dots, pair_positions


@pytest.mark.parametrize("num_vectors", [1, 2, 5])
def test_pair_dots(num_vectors):
    x_BFD = torch.randn(3, num_vectors, 4, dtype=torch.float64, requires_grad=True)
    pairs, mirror = pair_positions(num_vectors), mirror_positions(num_vectors)
    dots_BP = pair_dots(x_BFD, pairs, mirror)
    products = [(x_BFD[:, i] * x_BFD[:, j]).sum(1) for i in range(num_vectors) for j in range(i)]
    expected = torch.stack(products, 1) if products else torch.empty(3, 0, dtype=torch.float64)
    torch.testing.assert_close(dots_BP, expected)
    assert torch.autograd.gradcheck(lambda x: pair_dots(x, pairs, mirror), (x_BFD,))


def test_pair_sum_is_the_sum_of_pair_dots():
    wide = torch.randn(3, 5, 6, dtype=torch.float64)
    x_BFD = wide[:, :, :4].requires_grad_()
    dots_BP = pair_dots(x_BFD, pair_positions(5), mirror_positions(5))
    torch.testing.assert_close(pair_sum(x_BFD), dots_BP.sum(1))
    assert torch.autograd.gradcheck(pair_sum, (x_BFD,))
