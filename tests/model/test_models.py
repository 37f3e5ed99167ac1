"""Every model: gradients, exactness over splits, the same start on any stage, data without dense columns."""

from __future__ import annotations

import copy

import pytest
import torch

from recpipe.model import StepContext, build_model, summed_bce
from tests.model.small import SETTINGS, small_rows, small_schema

NAMES = sorted(SETTINGS)


def _build(name: str, dropout: float = 0.0, num_dense: int = 2, batch_norm: bool = False):
    cfg = copy.deepcopy(SETTINGS[name])
    cfg.dropout, cfg.batch_norm = dropout, batch_norm
    return build_model(cfg, small_schema(num_dense=num_dense), seed=5, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    model = _build(name, dropout=0.3)
    dense_BD, rows_BFD = small_rows(model, 3)
    parameters = list(model.parameters())

    def logits(rows, *_parameters):
        return model(dense_BD, rows, StepContext(seed=1, step=2))

    assert torch.autograd.gradcheck(logits, (rows_BFD, *parameters))


@pytest.mark.parametrize("name", NAMES)
def test_any_split_of_the_rows_gives_the_same_gradients(name):
    model = _build(name, dropout=0.4)
    dense_BD, rows_BFD = small_rows(model, 11)
    labels_B = (torch.arange(11) % 3 == 0).double()
    whole = _gradients(model, dense_BD, rows_BFD, labels_B, [0, 11])
    split = _gradients(model, dense_BD, rows_BFD, labels_B, [0, 4, 4, 5, 11])
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def _gradients(model, dense_BD, rows_BFD, labels_B, bounds):
    model.zero_grad()
    rows_BFD.grad = None
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        context = StepContext(seed=1, step=2, first_row=start)
        logits_B = model(dense_BD[start:stop], rows_BFD[start:stop], context)
        summed_bce(logits_B, labels_B[start:stop], len(labels_B))[0].backward()
    return [rows_BFD.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name):
    model = _build(name)
    dense_BD, rows_BFD = small_rows(model, 32)
    model(dense_BD, rows_BFD, StepContext()).square().sum().backward()
    silent = [key for key, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert silent == []


@pytest.mark.parametrize("name", NAMES)
def test_same_start_whichever_stage_holds_a_block(name):
    whole = _build(name)
    stage = build_model(SETTINGS[name], small_schema(), seed=5, dtype=torch.float64, device="meta")
    assert all(parameter.is_meta for parameter in stage.parameters())
    last = len(stage.blocks) - 1
    stage.materialise([last, 0], seed=5)
    for index, block in enumerate(stage.blocks):
        for key, parameter in block.named_parameters():
            assert parameter.is_meta == (index not in (0, last))
            if not parameter.is_meta:
                assert torch.equal(parameter, dict(whole.blocks[index].named_parameters())[key])


@pytest.mark.parametrize("name", NAMES)
def test_start_does_not_depend_on_dtype_but_on_the_seed(name):
    first, other = (build_model(SETTINGS[name], small_schema(), seed=seed) for seed in (5, 6))
    double = _build(name)
    state, double_state = first.state_dict(), double.state_dict()
    assert all(torch.equal(state[key], double_state[key].float()) for key in state)
    assert any(not torch.equal(state[key], other.state_dict()[key]) for key in state)


@pytest.mark.parametrize("name", NAMES)
def test_data_without_dense_columns(name):
    model = _build(name, num_dense=0)
    dense_BD, rows_BFD = small_rows(model, 6)
    logits_B = model(dense_BD, rows_BFD, StepContext())
    logits_B.sum().backward()
    assert logits_B.shape == (6,) and rows_BFD.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_give_zero_gradients(name):
    model = _build(name, dropout=0.5)
    dense_BD, rows_BFD = small_rows(model, 0)
    logits_B = model(dense_BD, rows_BFD, StepContext())
    loss, _ = summed_bce(logits_B, torch.empty(0), 8.0)
    loss.backward()
    assert loss.item() == 0.0 and rows_BFD.grad.shape == rows_BFD.shape
    assert all(not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["deepfm", "wide_deep"])
def test_first_order_weight_is_one_more_column(name):
    model = _build(name)
    dense_BD, rows_BFD = small_rows(model, 4)
    model(dense_BD, rows_BFD, StepContext()).sum().backward()
    assert model.row_dim == 8
    assert torch.equal(rows_BFD.grad[:, :, 4], torch.ones(4, 3, dtype=torch.float64))
    assert not rows_BFD.grad[:, :, 5:].any()
    rows = model.init_rows(model.tables[0], 0, 7, seed=1)
    assert rows[:, :4].all() and not rows[:, 4:].any()


def test_batch_norm_uses_running_statistics_outside_training_and_for_one_row():
    model = _build("dcn_v2", batch_norm=True)
    dense_BD, rows_BFD = small_rows(model, 16)
    before = model(dense_BD, rows_BFD, StepContext(training=False))
    trained = model(dense_BD, rows_BFD, StepContext())
    after = model(dense_BD, rows_BFD, StepContext(training=False))
    assert not torch.allclose(before, trained) and not torch.allclose(before, after)
    alone = model(dense_BD[:1], rows_BFD[:1], StepContext())
    torch.testing.assert_close(alone, after[:1])


def test_dlrm_equals_the_plain_formula():
    model = _build("dlrm")
    dense_BD, rows_BFD = small_rows(model, 5)
    weights = {key: value.detach() for key, value in model.named_parameters()}

    def layer(index, x):
        return x @ weights[f"blocks.{index}.affine.weight"].T + weights[f"blocks.{index}.affine.bias"]

    bottom = layer(1, layer(0, dense_BD).relu()).relu()
    vectors = [bottom, *rows_BFD.detach().unbind(1)]
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i)]
    joined = torch.cat([bottom, torch.stack(dots, 1), torch.zeros(5, 16 - 4 - 6, dtype=torch.float64)], 1)
    expected = layer(5, layer(4, layer(3, joined).relu()).relu()).squeeze(1)
    torch.testing.assert_close(model(dense_BD, rows_BFD, StepContext()), expected)
