"""The reference: a plain single-process trainer of the same model, with nothing shared but the model's blocks.

Whole tables as parameters, autograd through `embedding_bag`, one backward over the global batch, textbook row rules on
the rows that were touched. It is slow and simple on purpose: everything else is held against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from recpipe.batch import Batch, join_batches
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.model import Model, StepContext
from recpipe.train.lr import LrPolicy


class ReferenceTrainer:
    """Trains `model` on whole batches.

    Args:
        model: all blocks, materialised with the run's seed.
        rows: the start of each table, rows x dim.
        rule: settings of the row optimizer; its formulas are written again here.
        dense_optimizer: over the blocks' parameters.
        table_lr, policy, seed: as in `Trainer`.
        clip_norm: largest norm of the dense gradient; None: any.
        parts: pieces of a batch that are differentiated one after the other: the same sums in another order.
        backwards: takes the rows of a step from the last to the first: another order also where a block couples rows.

    Attributes:
        losses: mean loss of each step.
    """

    def __init__(
        self,
        model: Model,
        rows: Sequence[torch.Tensor],
        rule: RowOptimizer,
        dense_optimizer: torch.optim.Optimizer,
        table_lr: float,
        policy: LrPolicy,
        seed: int,
        clip_norm: float | None = None,
        parts: int = 1,
        backwards: bool = False,
    ) -> None:
        self.clip_norm, self.parts, self.backwards = clip_norm, parts, backwards
        self.losses: list[float] = []
        self.model, self.rule, self.dense_optimizer = model, rule, dense_optimizer
        self.tables = nn.ParameterList([nn.Parameter(table.clone()) for table in rows])
        self.table_lr, self.policy, self.seed = table_lr, policy, seed
        self.step = 0
        self.state = [self._state(table) for table in self.tables]
        self._base_lrs = [group["lr"] for group in dense_optimizer.param_groups]

    def train(self, batch: Batch) -> float:
        """One step over the whole global batch; gives its mean loss."""
        self._zero_gradients()
        loss = sum(self._differentiate(part, batch.num_rows) for part in batch.microbatches(self.parts))
        self.losses.append(loss)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        factor = self.policy.factor(self.step)
        for group, base in zip(self.dense_optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        self.dense_optimizer.step()
        self.step += 1
        for table, state, touched in zip(self.tables, self.state, self._ids(batch), strict=True):
            self._update(table, state, torch.unique(touched), self.table_lr * factor)
        return loss

    def _zero_gradients(self) -> None:
        """Zero, not none: a weight that a step does not reach is updated with a gradient of zero."""
        for weight in (*self.model.parameters(), *self.tables):
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None

    def _differentiate(self, part: Batch, num_rows: int) -> float:
        """Adds to all gradients; gives the share of these rows in the mean loss over `num_rows`."""
        if not part.num_rows:
            return 0.0
        if self.backwards:
            rows = [part.rows(i, i + 1) for i in reversed(range(part.num_rows))]
            part = replace(join_batches(rows, len(self.tables)), first_row=part.first_row)
        logits_B = self._forward(part)
        loss = F.binary_cross_entropy_with_logits(logits_B, part.labels_B.to(logits_B.dtype), reduction="sum") / num_rows
        loss.backward()
        return float(loss.detach())

    def _ids(self, batch: Batch) -> Sequence[torch.Tensor]:
        return batch.ids_N.split(batch.lengths_FB.view(len(self.tables), -1).sum(1).tolist())

    def _forward(self, batch: Batch) -> torch.Tensor:
        lengths = batch.lengths_FB.view(len(self.tables), -1)
        ids = self._ids(batch)
        weights = [None] * len(ids) if batch.weights_N is None else batch.weights_N.split(lengths.sum(1).tolist())
        pooled = [self._pool(i, ids[i], lengths[i].long(), weights[i]) for i in range(len(ids))]
        rows_B = torch.arange(batch.first_row, batch.first_row + batch.num_rows)
        context = StepContext(self.seed, self.step, batch.first_row, rows_B.flip(0) if self.backwards else None)
        dtype = self.tables[0].dtype
        return self.model(batch.dense_BD.to(dtype), torch.stack(pooled, dim=1), context)

    def _pool(self, i: int, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        table, mode = self.tables[i], self.model.tables[i].pooling
        offsets = lengths.cumsum(0) - lengths
        if mode == "mean":
            share = (1.0 / lengths.clamp(min=1).double()).repeat_interleave(lengths)
            weights = share if weights is None else weights * share
        factors = None if weights is None else weights.to(table.dtype)
        return F.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=factors)

    def _state(self, table: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.rule.name == "sgd":
            return {}
        if self.rule.name == "adam":
            return {"exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table)}
        return {"sum": torch.zeros_like(table[:, 0] if self.rule.name == "rowwise_adagrad" else table)}

    @torch.no_grad()
    def _update(self, table: nn.Parameter, state: dict[str, torch.Tensor], rows: torch.Tensor, lr: float) -> None:
        assert table.grad is not None
        grad = table.grad[rows] + self.rule.l2 * table[rows]
        if self.rule.name == "sgd":
            table[rows] -= lr * grad
        elif self.rule.name == "adam":
            beta1, beta2 = self.rule.betas
            state["exp_avg"][rows] = beta1 * state["exp_avg"][rows] + (1 - beta1) * grad
            state["exp_avg_sq"][rows] = beta2 * state["exp_avg_sq"][rows] + (1 - beta2) * grad**2
            mean = state["exp_avg"][rows] / (1 - beta1**self.step)
            variance = state["exp_avg_sq"][rows] / (1 - beta2**self.step)
            table[rows] -= lr * mean / (variance.sqrt() + self.rule.eps)
        elif self.rule.name == "rowwise_adagrad":
            state["sum"][rows] += grad.square().mean(dim=1)
            table[rows] -= lr * grad / (state["sum"][rows].sqrt() + self.rule.eps).unsqueeze(1)
        else:
            state["sum"][rows] += grad.square()
            table[rows] -= lr * grad / (state["sum"][rows].sqrt() + self.rule.eps)
