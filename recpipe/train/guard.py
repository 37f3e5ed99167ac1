"""Before an update: losses and gradients that are not finite, and the norm that gradients are clipped to.

Clipping is exact under stages: each stage gives the sum of squares of its own gradients, after their reduction, in float64;
copies are counted once; the sum over stages is that of the model. What may be left out is agreed by all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from recpipe.comm import Groups
from recpipe.errors import TrainingError

# As in torch.nn.utils.clip_grad_norm_, so that the trajectory is that of a plain loop.
_EPS = 1e-6
_ADVICE = (
    "nothing was updated. Lower optimizer.table.learning_rate or optimizer.dense.learning_rate, use lr.lr_warmup_steps or "
    "optimizer.dense.clip_norm, or leave such steps out with guard.non_finite=skip"
)


class StepGuard:
    """Decides of each step whether it may update, and scales its gradients.

    Args:
        counted: stages whose gradients this rank counts: one rank a stage, whatever the number of copies.
        groups: for the agreement.
        skip: leave unsound steps out instead of stopping.
        max_skipped_in_a_row: so many end the run.
        clip_norm: largest norm of all dense gradients together; None: any.

    Attributes:
        skipped: steps left out so far; the same on every rank.
    """

    def __init__(
        self,
        counted: Sequence[int],
        groups: Groups,
        skip: bool = False,
        max_skipped_in_a_row: int = 10,
        clip_norm: float | None = None,
    ) -> None:
        self._counted, self._groups, self._skip = counted, groups, skip
        self._max_in_a_row, self._clip_norm = max_skipped_in_a_row, clip_norm
        self._problem = ""
        self._in_a_row = 0
        self.skipped = 0

    def loss(self, value: float, place: str) -> None:
        """Looks at the loss of a microbatch before its backward.

        Args:
            place: step and rows, for the message.

        Raises:
            TrainingError: it is not finite, and the policy is to stop.
        """
        self._check(math.isfinite(value), f"the loss is {value} at {place}")

    def settle(self, gradients: Mapping[int, Sequence[torch.Tensor]], step: int) -> bool:
        """Whether the step may update, when all gradients of this rank's stages are reduced; scales them in place.

        Collective where steps may be left out or gradients are clipped.

        Raises:
            TrainingError: a gradient is not finite and the policy is to stop, or too many steps in a row were left out.
        """
        squares = {stage: sum_of_squares(tensors) for stage, tensors in gradients.items()}
        for stage, total in squares.items():
            self._check(math.isfinite(float(total)), f"the gradient of stage {stage} is not finite at step {step}")
        if not self._skip and self._clip_norm is None:
            return True
        mine = sum((squares[stage] for stage in self._counted if stage in squares), torch.zeros((), dtype=torch.float64))
        unsound, self._problem = bool(self._problem), ""
        told = self._groups.sum_cpu(torch.stack([torch.tensor(float(unsound)).double(), torch.nan_to_num(mine)]))
        if told[0] > 0:
            self._leave_out(step)
            return False
        self._in_a_row = 0
        if self._clip_norm is not None:
            factor = clip_factor(told[1], self._clip_norm)
            scale((tensor for tensors in gradients.values() for tensor in tensors), factor)
        return True

    def _leave_out(self, step: int) -> None:
        self.skipped += 1
        self._in_a_row += 1
        if self._in_a_row >= self._max_in_a_row:
            raise TrainingError(
                f"{self._in_a_row} steps in a row, up to step {step}, had a loss or gradient that is not finite; {_ADVICE}"
            )

    def _check(self, sound: bool, problem: str) -> None:
        if not sound:
            if not self._skip:
                raise TrainingError(f"{problem}; {_ADVICE}")
            self._problem = self._problem or problem


def sum_of_squares(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of all values, a float64 scalar; not finite where one of them is not."""
    tensors = [gradient.detach() for gradient in gradients]
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum()


def clip_factor(squares: torch.Tensor, max_norm: float) -> float:
    """What to multiply gradients with.

    Args:
        squares: `sum_of_squares` over all distinct parameters of the model.
        max_norm: largest norm that passes unchanged.
    """
    return min(1.0, max_norm / (float(squares) ** 0.5 + _EPS))


def scale(gradients: Iterable[torch.Tensor], factor: float) -> None:
    """Multiplies in place."""
    tensors = [gradient.detach() for gradient in gradients]
    if factor != 1.0 and tensors:
        torch._foreach_mul_(tensors, factor)
