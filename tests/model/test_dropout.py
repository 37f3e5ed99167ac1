"""The hash dropout: statistics of its masks, and what they depend on."""

from __future__ import annotations

import pytest
import torch

from recpipe.model.context import StepContext
from recpipe.model.dropout import dropout, keep_mask, relu_dropout_

CPU = torch.device("cpu")


def _mask(rows=4096, width=256, rate=0.2, layer="over_0", **context):
    return keep_mask(rows, width, rate, layer, StepContext(**context), CPU).double()


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.9])
def test_share_of_kept_units_overall_by_row_and_by_column(rate):
    mask = _mask(rate=rate)
    spread = (rate * (1 - rate)) ** 0.5
    assert abs(mask.mean() - (1 - rate)) < 4 * spread / mask.numel() ** 0.5
    for dim, count in ((0, 4096), (1, 256)):
        deviations = (mask.mean(dim) - (1 - rate)) * count**0.5 / spread
        assert deviations.abs().max() < 7 and 0.8 < deviations.std() < 1.2


@pytest.mark.parametrize("first_row", [0, 12_345_678, 2**40])
def test_columns_rows_and_products_are_uncorrelated(first_row):
    mask = (_mask(first_row=first_row) - 0.8) / 0.4
    by_column = mask.T @ mask / mask.shape[0] ** 0.5
    by_row = mask[:512] @ mask[:512].T / mask.shape[1] ** 0.5
    for scores in (by_column, by_row):
        off_diagonal = scores[~torch.eye(len(scores), dtype=torch.bool)]
        assert off_diagonal.abs().max() < 6 and 0.95 < off_diagonal.std() < 1.05
    # Corners of rectangles: a product of row and column keys must not show in fours.
    corners = mask[:-1, :-1] * mask[1:, :-1] * mask[:-1, 1:] * mask[1:, 1:]
    assert abs(corners.mean()) * corners.numel() ** 0.5 < 5


def test_seed_step_layer_and_row_change_the_mask():
    base = _mask()
    for other in (_mask(seed=1), _mask(step=1), _mask(layer="over_1"), _mask(first_row=1)):
        agreement = (other == base).double().mean()
        assert abs(agreement - (0.8**2 + 0.2**2)) < 0.01


def test_slices_and_listed_rows_have_the_mask_of_the_whole():
    whole = _mask(rows=50, width=33)
    assert torch.equal(_mask(rows=7, width=33, first_row=20), whole[20:27])
    rows_B = torch.tensor([3, 49, 4])
    assert torch.equal(_mask(rows=3, width=33, rows_B=rows_B), whole[rows_B])


def test_scaled_in_training_untouched_otherwise():
    x = torch.ones(1000, 100, dtype=torch.float64)
    dropped = dropout(x, 0.25, "a", StepContext())
    assert abs(dropped.mean() - 1) < 0.02 and set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
    assert dropout(x, 0.25, "a", StepContext(training=False)) is x
    assert dropout(x, 0.0, "a", StepContext()) is x


@pytest.mark.parametrize("shape", [(5, 7), (3, 2, 4)])
def test_relu_dropout_is_relu_then_dropout_and_its_gradient(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    context = StepContext(seed=3)
    torch.testing.assert_close(relu_dropout_(x * 1, 0.5, "a", context), dropout(x.relu(), 0.5, "a", context))
    assert torch.autograd.gradcheck(lambda y: relu_dropout_(y * 1, 0.5, "a", context), (x,))
