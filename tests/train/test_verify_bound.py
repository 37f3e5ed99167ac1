"""Case 139: what `recpipe verify` lets pass beyond the tolerance is rounding of the reference itself, and nothing else."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from recpipe.cli.main import main
from recpipe.train.verify import Difference, told
from tests.model.own_blocks import with_own_block


def test_the_bound_follows_rounding_up_to_a_limit():
    assert Difference("rows", "t", 1.0).bound(1e-12) == 1e-12
    assert Difference("rows", "t", 1.0, 1e-12).bound(1e-12) == pytest.approx(1.6e-11)
    assert Difference("rows", "t", 1.0, 1e-3).bound(1e-12) == 1e-9


def test_what_differs_is_named():
    said: list[str] = []
    differences = [Difference("loss", "loss", 0.0), Difference("rows", "t_a", 0.5), Difference("rows", "t_b", float("nan"))]
    assert not told(differences, 1e-12, said.append)
    assert [line for line in said if "beyond" in line] == ["  rows           nan   beyond the tolerance: t_a, t_b"]
    said.clear()
    assert told([Difference("dense_weights", "w", 2e-12, 1e-12)], 1e-12, said.append)
    assert "w differs by 2e-12: by no more than its rounding" in said[-1]


class Shifted(nn.Module):
    """Adds a weight that the softmax behind it takes out again: its gradient is rounding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Linear(1, 1)
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.shift(torch.ones_like(x[:, :1]))).softmax(1)


def test_a_users_weight_without_effect_is_no_false_alarm(monkeypatch, tmp_path):
    """Rounding that Adam magnifies; verify says so by name and passes."""
    with_own_block(monkeypatch, Shifted)
    settings = ["model.dense_arch_layer_sizes=[64,16]", "steps=30", "launch.nproc=1", "schedule.microbatches=2"]
    small = ["data.num_train=800", "data.num_valid=10", "data.num_test=10", f"run.dir={tmp_path}"]
    assert main(["verify", *settings, *small, "optimizer.dense.eps=1e-9"]) == 0
    result = json.loads((tmp_path / "verify.json").read_text())
    assert result["differences"]["dense_weights"] > 1e-12 and not result["beyond"]


def test_a_weight_that_batch_norm_takes_out_again_is_no_false_alarm(tmp_path):
    """Biases of an attention reach nothing but batch normalisation: the second reference takes the rows backwards."""
    settings = ["model=feature_transformer", "model.batch_norm=true", "steps=20", "launch.nproc=1", "model.dropout=0.2"]
    small = ["data.num_train=800", "data.num_valid=10", "data.num_test=10", f"run.dir={tmp_path}"]
    assert main(["verify", *settings, *small]) == 0
