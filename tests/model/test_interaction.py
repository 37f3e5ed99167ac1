"""The custom backward passes against plain autograd and finite differences."""

from __future__ import annotations

import pytest
import torch

from recpipe.model import interaction
from recpipe.model.fm import pair_sum
from recpipe.model.interaction import interact, mirror_positions, pair_positions


def dots(x_BFD: torch.Tensor) -> torch.Tensor:
    """Pair products alone, without the zeros behind them."""
    pairs = pair_positions(x_BFD.shape[1])
    return interact(x_BFD, None, pairs, mirror_positions(x_BFD.shape[1]))[:, : len(pairs)]


def plain_dots(x_BFD: torch.Tensor) -> torch.Tensor:
    products = [(x_BFD[:, i] * x_BFD[:, j]).sum(1) for i in range(x_BFD.shape[1]) for j in range(i)]
    return torch.stack(products, 1) if products else x_BFD.new_empty(len(x_BFD), 0)


@pytest.mark.parametrize("chunk", [2, 256])
@pytest.mark.parametrize("num_rows", [0, 5])
@pytest.mark.parametrize("num_vectors", [1, 2, 5])
def test_pair_dots(num_vectors, num_rows, chunk, monkeypatch):
    monkeypatch.setattr(interaction, "_CHUNK_ROWS", chunk)
    x_BFD = torch.randn(num_rows, num_vectors, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(dots(x_BFD), plain_dots(x_BFD))
    assert not num_rows or torch.autograd.gradcheck(dots, (x_BFD,))


def test_dense_first_and_zeros_last(monkeypatch):
    monkeypatch.setattr(interaction, "_CHUNK_ROWS", 2)
    rows_BFD, dense_BD = torch.randn(5, 3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    inputs = rows_BFD.requires_grad_(), dense_BD.requires_grad_()

    def run(rows_BFD, dense_BD):
        return interact(rows_BFD, dense_BD, pair_positions(4), mirror_positions(4))

    found = run(*inputs)
    torch.testing.assert_close(found[:, :4], dense_BD)
    torch.testing.assert_close(found[:, 4:10], plain_dots(torch.cat([dense_BD.unsqueeze(1), rows_BFD], 1)))
    assert found.shape == (5, 16) and not found[:, 10:].any()
    assert torch.autograd.gradcheck(run, inputs)


def test_pair_sum_is_the_sum_of_pair_dots():
    wide = torch.randn(3, 5, 6, dtype=torch.float64)
    x_BFD = wide[:, :, :4].requires_grad_()
    torch.testing.assert_close(pair_sum(x_BFD), dots(x_BFD).sum(1))
    assert torch.autograd.gradcheck(pair_sum, (x_BFD,))
