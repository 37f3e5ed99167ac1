"""Case 139: no weight has a gradient that is zero but for rounding; Adam divides such a gradient by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recpipe.model import StepContext, build_model
from tests.model.small import SETTINGS, small_rows, small_schema


def gradients(name, batch_norm):
    cfg = replace(SETTINGS[name], batch_norm=batch_norm)
    model = build_model(cfg, small_schema(), seed=1, dtype=torch.float64)
    dense_BD, rows_BFD = small_rows(model, 12)
    weigh = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    (model(dense_BD, rows_BFD, StepContext()) * weigh).sum().backward()
    return {key: weight.grad for key, weight in model.named_parameters()}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_gradient_is_zero_or_more_than_rounding(name):
    found = gradients(name, False)
    scale = max(float(grad.abs().max()) for grad in found.values())
    for key, grad in found.items():
        sizes = grad[grad != 0].abs() / scale
        assert not sizes.numel() or float(sizes.min()) > 1e-13, f"{key}: {float(sizes.min()):.2g} of the largest"


@pytest.mark.parametrize("name", SETTINGS)
def test_biases_before_batch_norm_stay(name):
    found = gradients(name, True)
    before = [key.replace("norm.weight", "affine.bias") for key in found if key.endswith("norm.weight")]
    assert any(key in found for key in before)
    assert not any(found[key].any() for key in before if key in found)


def test_the_bias_of_keys_stays_and_those_of_queries_and_values_move():
    bias = next(grad for key, grad in gradients("feature_transformer", False).items() if key.endswith("project.bias"))
    query, key, value = bias.chunk(3)
    assert query.any() and not key.any() and value.any()
