"""The rows a rank owns: one tensor a piece class, with optimizer state beside it.

Nothing of a table's full size is ever made: every shard is filled in chunks of rows from a rule that depends on
(seed, table, row) alone, so that all layouts start from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.rowmap import LocalShard, RowMap

InitRows = Callable[[int, int, int], torch.Tensor]
_CHUNK_ROWS = 1 << 16


class RowStore:
    """Weights and optimizer state of this rank's shards.

    Args:
        rowmap: where shards lie.
        optimizer: decides which state there is.
        init_rows: (table index, row_start, row_stop) -> rows x dim, of `dtype`.
        dtype: of weights and state.
        device: of weights and state.
    """

    def __init__(
        self,
        rowmap: RowMap,
        optimizer: RowOptimizer,
        init_rows: InitRows,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rowmap = rowmap
        self.optimizer = optimizer
        self.weights: list[torch.Tensor] = []
        self.states: list[dict[str, torch.Tensor]] = []
        for index, piece in enumerate(rowmap.classes):
            rows = rowmap.num_local_rows(index)
            self.weights.append(torch.empty(rows, piece.width, dtype=dtype, device=device))
            self.states.append(
                {
                    name: torch.zeros((rows, columns) if columns else (rows,), dtype=dtype, device=device)
                    for name, columns in optimizer.state_widths(piece.width).items()
                }
            )
        for local in rowmap.local_shards:
            self._fill(local, init_rows)

    def weight(self, local: LocalShard) -> torch.Tensor:
        """The rectangle of a shard: a view."""
        return self._slice(self.weights[local.piece_class], local)

    def state(self, local: LocalShard, name: str) -> torch.Tensor:
        """State `name` of a shard: a view; 1-D where there is one value a row."""
        return self._slice(self.states[local.piece_class][name], local)

    def gather(self, rows_Q: torch.Tensor, counts_X: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows as one flat message of `dtype`.

        Args:
            rows_Q: rows of this rank's tensors, (peer, class)-major.
            counts_X: how many there are of each (peer, class).
        """
        if len(self.weights) == 1:
            return self.weights[0].index_select(0, rows_Q).flatten().to(dtype)
        runs = rows_Q.split(counts_X.tolist())
        parts = [self.weights[i % len(self.weights)].index_select(0, run).flatten() for i, run in enumerate(runs)]
        return torch.cat(parts).to(dtype)

    def num_bytes(self) -> int:
        """Bytes of weights and state on this rank."""
        tensors = [*self.weights, *(state for states in self.states for state in states.values())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def update(
        self, piece_class: int, rows_U: torch.Tensor, grad_UD: torch.Tensor, lr: float, step: int, squares: torch.Tensor | None
    ) -> None:
        """One exact update of unique rows of a class; see `RowOptimizer.step`."""
        self.optimizer.step(
            self.weights[piece_class], self.states[piece_class], rows_U, grad_UD, lr, step, squares
        )

    @staticmethod
    def _slice(tensor: torch.Tensor, local: LocalShard) -> torch.Tensor:
        return tensor[local.offset : local.offset + local.shard.num_rows]

    def _fill(self, local: LocalShard, init_rows: InitRows) -> None:
        shard, target = local.shard, self.weight(local)
        for start in range(shard.row_start, shard.row_stop, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, shard.row_stop)
            rows = init_rows(local.table, start, stop)[:, shard.col_start : shard.col_stop]
            target[start - shard.row_start : stop - shard.row_start] = rows
