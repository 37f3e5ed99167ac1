"""The summed loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from recpipe.model import summed_bce


def test_equals_torch_and_adds_up_over_splits():
    logits_B = torch.randn(9, dtype=torch.float64, requires_grad=True)
    labels_B = (torch.arange(9) % 2).double()
    loss, probs_B = summed_bce(logits_B, labels_B, 9)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits_B, labels_B))
    torch.testing.assert_close(probs_B, logits_B.sigmoid())
    assert not probs_B.requires_grad
    parts = sum(summed_bce(logits_B[a:b], labels_B[a:b], 9)[0] for a, b in ((0, 2), (2, 2), (2, 9)))
    torch.testing.assert_close(parts, loss)
    assert torch.autograd.gradcheck(lambda x: summed_bce(x, labels_B, 9.5)[0], (logits_B,))


def test_stable_at_large_logits():
    logits_B = torch.tensor([1e4, -1e4, 1e4, -1e4], requires_grad=True)
    loss, _ = summed_bce(logits_B, torch.tensor([1.0, 0.0, 0.0, 1.0]), 4)
    loss.backward()
    assert loss.item() == 5000.0
    assert logits_B.grad.tolist() == [0.0, 0.0, 0.25, -0.25]
