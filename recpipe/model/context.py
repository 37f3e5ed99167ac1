"""What a forward pass has to know besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepContext:
    """Where in training a forward pass stands. Dropout masks depend on these and on nothing else.

    Args:
        seed: the run's seed.
        step: global step.
        first_row: global position of the first row, in the epoch's order, when rows are consecutive.
        rows_B: int64 global positions when they are not (rows were dropped); takes the place of ``first_row``.
        training: dropout on, batch statistics used.
    """

    seed: int = 0
    step: int = 0
    first_row: int = 0
    rows_B: torch.Tensor | None = None
    training: bool = True

    def row_positions(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """Global positions of ``num_rows`` rows, int64 ``[B]``."""
        if self.rows_B is not None:
            assert self.rows_B.shape == (num_rows,), f"{tuple(self.rows_B.shape)} positions for {num_rows} rows"
            return self.rows_B.to(device)
        return torch.arange(self.first_row, self.first_row + num_rows, device=device)
