"""Clips dense gradients by their norm over all distinct parameters, however these are spread over stages and replicas.

Exact under stages: each stage gives the sum of squares of its own parameters, in float64; the sum over the stages of one
replica is that of the model. Gradients must be reduced over replicas first; copies are counted once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

# As in torch.nn.utils.clip_grad_norm_, so that the trajectory is that of a plain loop.
_EPS = 1e-6


def sum_of_squares(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of all values, a float64 scalar; not finite where one of them is not."""
    norms = torch._foreach_norm([gradient.detach() for gradient in gradients])
    return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)


def clip_factor(squares: torch.Tensor, max_norm: float) -> float:
    """What to multiply gradients with.

    Args:
        squares: `sum_of_squares` over all distinct parameters of the model.
        max_norm: largest norm that passes unchanged.
    """
    return min(1.0, max_norm / (float(squares) ** 0.5 + _EPS))


def scale(gradients: Iterable[torch.Tensor], factor: float) -> None:
    """Multiplies in place."""
    if factor != 1.0:
        torch._foreach_mul_([gradient.detach() for gradient in gradients], factor)
