"""Rules that update table rows once a step with the gradient summed over the whole global batch.

Each rule works on gathered rows: it gets the unique touched rows, their state and their summed gradient. Rows that no
lookup touched keep weight and state: Adam is therefore the lazy one (torch.optim.SparseAdam), and L2 acts on touched rows.

Sources: Adagrad, Duchi et al. 2011, with eps outside the root as in torch.optim.Adagrad and FBGEMM; row-wise Adagrad as in
FBGEMM (one state a row, the mean of squares over the row); Adam, Kingma and Ba 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recpipe.errors import ConfigError, nearest

ROW_OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")


@dataclass(frozen=True)
class RowOptimizer:
    """A rule and its settings.

    Args:
        name: one of `ROW_OPTIMIZERS`.
        eps: added outside the root.
        l2: weight of half the squared norm of every touched row, added to the gradient.
        betas: Adam's decay of the moments.
    """

    name: str
    eps: float = 1e-8
    l2: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.name not in ROW_OPTIMIZERS:
            raise ConfigError(f"optimizer.table.name={self.name}: unknown; {nearest(self.name, ROW_OPTIMIZERS)}")

    def state_widths(self, width: int) -> dict[str, int]:
        """Name and columns of each state tensor for rows of `width` columns; 0 columns means one value a row."""
        return {
            "sgd": {},
            "adagrad": {"sum": width},
            "rowwise_adagrad": {"sum": 0},
            "adam": {"exp_avg": width, "exp_avg_sq": width},
        }[self.name]

    @property
    def needs_row_squares(self) -> bool:
        """The rule needs the squared gradient summed over the *whole* row, whatever columns a rank holds."""
        return self.name == "rowwise_adagrad"

    def step(
        self,
        weight_RD: torch.Tensor,
        state: dict[str, torch.Tensor],
        rows_U: torch.Tensor,
        grad_UD: torch.Tensor,
        lr: float,
        step: int,
        squares_U: torch.Tensor | None = None,
    ) -> None:
        """Updates rows `rows_U` (unique) of `weight_RD` and of the state, in place.

        Args:
            grad_UD: summed gradients, L2 already added (`regularize`).
            lr: learning rate of this step.
            step: updates done including this one, from 1 (Adam's bias correction).
            squares_U: mean over the whole row of the squared gradient, where `needs_row_squares`.
        """
        # Not `alpha` of index_add_: with it a CPU takes three times as long.
        if self.name == "sgd":
            weight_RD.index_add_(0, rows_U, grad_UD * -lr)
        elif self.name == "adam":
            self._adam(weight_RD, state, rows_U, grad_UD, lr, step)
        else:
            added = grad_UD.square() if squares_U is None else squares_U
            total = state["sum"].index_select(0, rows_U).add_(added)
            state["sum"].index_copy_(0, rows_U, total)
            scale = total.sqrt_().add_(self.eps)
            update = grad_UD / (scale if squares_U is None else scale.unsqueeze(1))
            weight_RD.index_add_(0, rows_U, update.mul_(-lr))

    def regularize(self, weight_RD: torch.Tensor, rows_U: torch.Tensor, grad_UD: torch.Tensor) -> torch.Tensor:
        """Adds the L2 gradient of the touched rows, in place."""
        return grad_UD.add_(weight_RD.index_select(0, rows_U), alpha=self.l2) if self.l2 else grad_UD

    def _adam(
        self,
        weight_RD: torch.Tensor,
        state: dict[str, torch.Tensor],
        rows_U: torch.Tensor,
        grad_UD: torch.Tensor,
        lr: float,
        step: int,
    ) -> None:
        beta1, beta2 = self.betas
        mean = state["exp_avg"].index_select(0, rows_U).lerp_(grad_UD, 1 - beta1)
        var = state["exp_avg_sq"].index_select(0, rows_U).mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows_U, mean)
        state["exp_avg_sq"].index_copy_(0, rows_U, var)
        scale = var.sqrt_().div_((1 - beta2**step) ** 0.5).add_(self.eps)
        weight_RD.index_add_(0, rows_U, mean.div_(scale).mul_(-lr / (1 - beta1**step)))
