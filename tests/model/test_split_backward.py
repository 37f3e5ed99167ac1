"""Backward in two halves, inputs first and weights later, gives the gradients of one backward at every cut.

A contract test of the blocks' autograd graphs with torch's own splitter, which is private and may move.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from recpipe.model import StepContext, build_model, run_blocks
from tests.model.small import SETTINGS, small_rows, small_schema

CONTEXT = StepContext(seed=1, step=2)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_input_half_then_weight_half(name):
    cfg = copy.deepcopy(SETTINGS[name])
    cfg.dropout = 0.3
    model = build_model(cfg, small_schema(), seed=5, dtype=torch.float64)
    dense_BD, rows_BFD = small_rows(model, 4)
    model(dense_BD, rows_BFD, CONTEXT).sum().backward()
    expected = {key: parameter.grad for key, parameter in model.blocks.named_parameters()}
    for cut in range(len(model.blocks)):
        model.zero_grad()
        message_M = _message(model, cut, {"dense_BD": dense_BD, "rows_BFD": rows_BFD}).requires_grad_()
        stage = model.blocks[cut:]
        out = run_blocks(stage, model.boundaries[cut].unpack(message_M, 4), CONTEXT)["logits_B"].sum()
        (grad_M,), groups = stage_backward_input([out], None, [message_M], iter(stage.parameters()))
        stage_backward_weight(iter(stage.parameters()), groups)
        if cut == 0:
            torch.testing.assert_close(model.boundaries[0].unpack(grad_M, 4)["rows_BFD"], rows_BFD.grad)
        for key, parameter in model.blocks.named_parameters():
            if int(key.split(".")[0]) >= cut:
                torch.testing.assert_close(parameter.grad, expected[key], rtol=0, atol=1e-13)


def _message(model, cut, inputs):
    with torch.no_grad():
        return model.boundaries[cut].pack(run_blocks(model.blocks[:cut], inputs, CONTEXT))
