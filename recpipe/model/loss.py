"""The loss: binary cross entropy with logits, *summed* over rows and divided by the step's agreed global row count.

Never a mean of means: any split of the rows over ranks and microbatches adds up to the same loss and gradients.
"""

from __future__ import annotations

import torch


class _SummedBce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_B, labels_B, global_rows):  # type: ignore[no-untyped-def]
        probs_B = torch.sigmoid(logits_B)
        ctx.save_for_backward(probs_B, labels_B)
        ctx.global_rows = global_rows
        ctx.mark_non_differentiable(probs_B)
        loss_B = logits_B.clamp_min(0).sub_(logits_B * labels_B).add_(torch.log1p(torch.exp(-logits_B.abs())))
        return loss_B.sum() / global_rows, probs_B

    @staticmethod
    def backward(ctx, grad_loss, _grad_probs):  # type: ignore[no-untyped-def]
        probs_B, labels_B = ctx.saved_tensors
        return (probs_B - labels_B) * (grad_loss / ctx.global_rows), None, None


def summed_bce(logits_B: torch.Tensor, labels_B: torch.Tensor, global_rows: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of these rows as their share of the step's loss, and the predicted probabilities.

    Args:
        logits_B: ``[B]``; B may be zero (loss 0).
        labels_B: ``[B]`` 0 or 1.
        global_rows: rows of the whole step over all ranks and microbatches, at least 1.

    Returns:
        The loss, a scalar with gradient, and probabilities ``[B]`` without.
    """
    assert global_rows > 0, "a step without rows has no loss"
    loss, probs_B = _SummedBce.apply(logits_B, labels_B.to(logits_B.dtype), global_rows)  # type: ignore[no-untyped-call]
    return loss, probs_B
