"""Backward of a stage, whole or in halves: first the gradient of its input, later those of its weights.

The halves come from `torch.distributed.pipelining`, whose module is private: this file is the only place that knows it,
and `tests/model/test_split_backward.py` holds it to what is expected here. It is imported where it is used: that takes half
a second, and few schedules have halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Halves = list[dict[str, Any]]
Ready = Callable[[torch.Tensor], None]


def backward(output: torch.Tensor, grad: torch.Tensor | None, leaf: torch.Tensor, ready: Ready) -> None:
    """Adds to the gradients of all weights behind `output`.

    Args:
        output: a scalar loss, or the tensor that `grad` is the gradient of.
        ready: called once with the gradient of `leaf`: as soon as it is there, while layers that do not lie behind `leaf` may
            still be to come (a bottom tower).
    """
    found: list[torch.Tensor] = []

    def is_there(leaf: torch.Tensor) -> None:
        found.append(_take(leaf))
        ready(found[0])

    handle = leaf.register_post_accumulate_grad_hook(is_there)
    torch.autograd.backward([output], None if grad is None else [grad])
    handle.remove()
    if not found:
        ready(_take(leaf))


def backward_input(
    output: torch.Tensor, grad: torch.Tensor | None, leaf: torch.Tensor, weights: Sequence[nn.Parameter]
) -> tuple[torch.Tensor, Halves]:
    """The gradient of `leaf` alone, and what `backward_weights` needs."""
    from torch.distributed.pipelining._backward import stage_backward_input

    grads = None if grad is None else [grad]
    _, halves = stage_backward_input([output], grads, [leaf], iter(weights))
    return _take(leaf), halves


def backward_weights(weights: Sequence[nn.Parameter], halves: Halves) -> None:
    """Adds to the gradients of `weights`."""
    from torch.distributed.pipelining._backward import stage_backward_weight

    stage_backward_weight(iter(weights), halves)


def _take(leaf: torch.Tensor) -> torch.Tensor:
    """A leaf that nothing reads (every block behind it ignores it) has no gradient: zero."""
    grad, leaf.grad = leaf.grad, None
    return torch.zeros_like(leaf) if grad is None else grad
