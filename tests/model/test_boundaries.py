"""Cuts between blocks: what crosses them, and that stages joined by messages equal the whole model."""

from __future__ import annotations

import pytest
import torch

from recpipe.model import StepContext, build_model, run_blocks
from tests.model.small import SETTINGS, small_rows, small_schema

CONTEXT = StepContext(seed=1, step=2)


def _build(name):
    return build_model(SETTINGS[name], small_schema(), seed=5, dtype=torch.float64)


def test_x0_crosses_every_cut_up_to_its_last_reader():
    model = _build("dcn_v2")
    names = {block.name: spec.names for block, spec in zip(model.blocks, model.boundaries[:-1], strict=True)}
    assert set(names["join"]) == {"dense_BD", "rows_BFD"}
    assert names["cross_0"] == ("x0_BK",)
    assert names["cross_1"] == ("x0_BK", "cross_0_BK")
    assert set(names["over_1"]) == {"over_0_BH", "cross_1_BK"}
    assert model.boundaries[-1].names == ("logits_B",) and model.boundaries[-1].shapes == ((),)


def test_specs_carry_shapes_and_where_gradients_return():
    spec = _build("dlrm").boundaries[0]
    assert dict(zip(spec.names, spec.shapes, strict=True)) == {"dense_BD": (2,), "rows_BFD": (3, 4)}
    assert dict(zip(spec.names, spec.has_grad, strict=True)) == {"dense_BD": False, "rows_BFD": True}
    assert spec.row_numel == 14


@pytest.mark.parametrize("name", sorted(SETTINGS))
@pytest.mark.parametrize("num_rows", [5, 0])
def test_stages_joined_by_messages_equal_the_whole(name, num_rows):
    model = _build(name)
    dense_BD, rows_BFD = small_rows(model, num_rows)
    model(dense_BD, rows_BFD, CONTEXT).square().sum().backward()
    expected = [rows_BFD.grad, *(parameter.grad for parameter in model.parameters())]
    for cut in range(1, len(model.blocks)):
        rows_BFD.grad = None
        model.zero_grad()
        _two_stages(model, cut, {"dense_BD": dense_BD, "rows_BFD": rows_BFD}, num_rows)
        for got, want in zip([rows_BFD.grad, *(p.grad for p in model.parameters())], expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def _two_stages(model, cut, inputs, num_rows):
    """Forward and backward with one message each way."""
    spec = model.boundaries[cut]
    sent_M = spec.pack(run_blocks(model.blocks[:cut], inputs, CONTEXT))
    assert sent_M.is_contiguous() and sent_M.shape == (num_rows * spec.row_numel,)
    received_M = sent_M.detach().clone().requires_grad_()
    tensors = run_blocks(model.blocks[cut:], spec.unpack(received_M, num_rows), CONTEXT)
    tensors["logits_B"].square().sum().backward()
    if sent_M.requires_grad:
        sent_M.backward(received_M.grad)


def test_a_message_of_the_wrong_size_is_refused():
    spec = _build("dlrm").boundaries[1]
    with pytest.raises(AssertionError, match="not 3 rows"):
        spec.unpack(torch.empty(3 * spec.row_numel + 1), 3)
