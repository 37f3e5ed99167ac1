"""One training step: rows come in, the tower runs forward and backward, gradients go out, every weight is updated once.

The order of verbs here is a fixed schedule for one stage: the ids of step t+1 are routed while step t computes, and row
gradients and dense buckets travel while the rest of backward runs. Pipelines replace this file's order by a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from recpipe.batch import Batch
from recpipe.comm import GradientReducer
from recpipe.embedding.tables import ShardedTables, TablesStep
from recpipe.errors import TrainingError
from recpipe.model import Model, StepContext, summed_bce
from recpipe.train.lr import LrPolicy


@dataclass
class PreparedStep:
    """A step whose ids are on their way to row owners.

    Args:
        batch: this rank's rows.
        pieces: the same rows as microbatches.
        tables: the window opened for them.
    """

    batch: Batch
    pieces: Sequence[Batch]
    tables: TablesStep


@dataclass(frozen=True)
class StepResult:
    """What a step tells.

    Args:
        loss: this rank's share of the step's loss (shares add up to the mean over the global batch).
        global_rows: rows of the step over all ranks.
        logits_B, labels_B: of this rank's rows.
    """

    loss: float
    global_rows: int
    logits_B: torch.Tensor
    labels_B: torch.Tensor


class Scorer:
    """Model and tables of this rank, forward only.

    Args:
        model: all blocks, materialised.
        tables: the sharded tables.
        seed: of the run.
    """

    def __init__(self, model: Model, tables: ShardedTables, seed: int = 0) -> None:
        self.model, self.tables, self.seed = model, tables, seed

    def score(self, batch: Batch) -> PreparedStep:
        """Opens a window for evaluation: one microbatch, nothing will be updated."""
        return PreparedStep(batch, [batch], self.tables.open([batch], header=(batch.num_rows,)))

    @torch.no_grad()
    def logits(self, prepared: PreparedStep) -> torch.Tensor:
        """Scores the rows of a window opened by `score`, whose rows were requested; logits of B rows."""
        prepared.tables.lookup()
        prepared.tables.send_rows(0)
        rows_BFD = prepared.tables.pool(0)
        context = StepContext(seed=self.seed, training=False)
        return self.model(prepared.batch.dense_BD.to(rows_BFD.dtype), rows_BFD, context)


class Trainer(Scorer):
    """Model, tables and optimizers of this rank, and the step that moves them.

    Args:
        model: all blocks, materialised.
        tables: the sharded tables.
        reducer: sums dense gradients over replicas.
        dense_optimizer: of the blocks' parameters, at its base learning rate.
        table_lr: base learning rate of the tables.
        policy: factor on both rates.
        microbatches: pieces that a rank's rows are cut in.
        seed: of dropout.
    """

    def __init__(
        self,
        model: Model,
        tables: ShardedTables,
        reducer: GradientReducer,
        dense_optimizer: torch.optim.Optimizer,
        table_lr: float,
        policy: LrPolicy,
        microbatches: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(model, tables, seed)
        self.reducer = reducer
        self.dense_optimizer = dense_optimizer
        self.table_lr, self.policy = table_lr, policy
        self.microbatches = microbatches
        self.step = 0
        self._base_lrs = [group["lr"] for group in dense_optimizer.param_groups]

    def prepare(self, batch: Batch) -> PreparedStep:
        """Dedups a step's ids and announces them to the owners."""
        pieces = batch.microbatches(self.microbatches)
        return PreparedStep(batch, pieces, self.tables.open(pieces, header=(batch.num_rows,)))

    def train(
        self, prepared: PreparedStep, prepare_next: Callable[[], PreparedStep | None]
    ) -> tuple[StepResult, PreparedStep | None]:
        """Runs one step; `prepare_next` is called where its work hides best. Gives the result and the prepared next step.

        Raises:
            TrainingError: the loss is not finite; nothing has been updated.
        """
        tables, factor = prepared.tables, self.policy.factor(self.step)
        tables.lookup(self.table_lr * factor)
        for m in range(self.microbatches):
            tables.send_rows(m)
        following = prepare_next()
        global_rows = int(tables.headers[:, 0].sum())
        self.reducer.begin(self.microbatches)
        parts = [self._microbatch(prepared, m, max(global_rows, 1)) for m in range(self.microbatches)]
        if following is not None:
            following.tables.request()
        self._step_dense(factor)
        self.step += 1
        tables.update(self.step)
        logits_B = torch.cat([logits for _, logits in parts])
        return StepResult(sum(loss for loss, _ in parts), global_rows, logits_B, prepared.batch.labels_B), following

    def _microbatch(self, prepared: PreparedStep, m: int, global_rows: int) -> tuple[float, torch.Tensor]:
        piece, tables = prepared.pieces[m], prepared.tables
        rows_BFD = tables.pool(m)
        loss_value, logits_B = 0.0, rows_BFD.new_empty(0)
        if piece.num_rows:
            rows_BFD.requires_grad_()
            context = StepContext(seed=self.seed, step=self.step, first_row=piece.first_row, training=True)
            logits_B = self.model(piece.dense_BD.to(rows_BFD.dtype), rows_BFD, context)
            loss, _ = summed_bce(logits_B, piece.labels_B, global_rows)
            loss_value = self._finite(float(loss.detach()), piece)
            loss.backward()
            assert rows_BFD.grad is not None
            tables.add_gradient(m, rows_BFD.grad)
        self.reducer.backward_done()
        tables.send_gradients(m)
        return loss_value, logits_B.detach()

    def _finite(self, loss: float, piece: Batch) -> float:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {self.step}, rows {piece.first_row} to {piece.first_row + piece.num_rows - 1} "
                f"of the epoch; nothing was updated. Lower optimizer.table.learning_rate or optimizer.dense.learning_rate, "
                f"or use lr.lr_warmup_steps"
            )
        return loss

    def _step_dense(self, factor: float) -> None:
        self.reducer.finish()
        for group, base in zip(self.dense_optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        self.dense_optimizer.step()
