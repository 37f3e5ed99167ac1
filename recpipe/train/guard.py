"""Guards an update against losses and gradients that are not finite: the run stops, or the step is left out and counted.

Both before backward (the loss) and before the update (the gradients); every rank leaves out the same steps.
"""

from __future__ import annotations

import math

import torch

from recpipe.comm import Groups
from recpipe.errors import TrainingError

_ADVICE = (
    "nothing was updated. Lower optimizer.table.learning_rate or optimizer.dense.learning_rate, use lr.lr_warmup_steps or "
    "optimizer.dense.clip_norm, or leave such steps out with guard.non_finite=skip"
)


class Guard:
    """Watches one step after the other.

    Args:
        skip: leave unsound steps out instead of stopping.
        groups: for the agreement on what to leave out.
    """

    def __init__(self, skip: bool = False, groups: Groups | None = None) -> None:
        self._skip, self._groups = skip, groups
        self.problem = ""

    def loss(self, value: float, place: str) -> bool:
        """Whether backward may run on this loss.

        Args:
            place: step and rows, for the message.

        Raises:
            TrainingError: it is not finite, and the policy is to stop.
        """
        return self._check(math.isfinite(value), f"the loss is {value} at {place}")

    def gradient(self, total: torch.Tensor | float, what: str) -> bool:
        """Whether a gradient may be used.

        Args:
            total: a sum over it, not finite where one of its values is not.

        Raises:
            TrainingError: it is not finite, and the policy is to stop.
        """
        return self._check(math.isfinite(float(total)), f"the gradient of {what} is not finite")

    def agree(self) -> bool:
        """Whether the step is sound on all ranks; forgets it. Collective where steps may be left out."""
        mine, self.problem = not self.problem, ""
        if not self._skip or self._groups is None:
            return mine
        return not int(self._groups.sum_cpu(torch.tensor([0 if mine else 1])))

    def _check(self, sound: bool, problem: str) -> bool:
        if not sound:
            if not self._skip:
                raise TrainingError(f"{problem}; {_ADVICE}")
            self.problem = self.problem or problem
        return sound
