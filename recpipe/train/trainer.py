"""Training and scoring on this rank: the executor of a program, and the dense side of each update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from recpipe.batch import Batch
from recpipe.comm import GradientReducer
from recpipe.embedding.tables import ShardedTables
from recpipe.model import Model
from recpipe.runtime.executor import Executor
from recpipe.runtime.place import Place
from recpipe.runtime.running import StepResult
from recpipe.train.guard import StepGuard
from recpipe.train.lr import LrPolicy


class Scorer:
    """Model and tables of this rank, forward only.

    Args:
        model: all blocks; those of this rank's stages are materialised.
        tables: the sharded tables.
        forward: executes the scoring order.
    """

    def __init__(self, model: Model, tables: ShardedTables, forward: Executor) -> None:
        self.model, self.tables, self._forward = model, tables, forward
        self.scored = 0

    @property
    def place(self) -> Place:
        """Where this rank stands: which rows it reads."""
        return self._forward.place

    def score(self, batches: Iterator[Batch]) -> Iterator[StepResult]:
        """Scores one batch a step, and counts them; the same number of batches on every rank. Nothing is updated."""
        for result in self._forward.run(batches):
            self.scored += 1
            yield result


class DenseUpdates:
    """Reduces and updates the weights of this rank's stages.

    Args:
        reducers: by stage: sums gradients over the copies of the stage.
        optimizers: by stage that has weights, at their base learning rates.
        num_backwards: by stage, backward passes of a step on this rank.
        policy: factor on the learning rates.
        base_table_lr: base learning rate of the tables.
        guard: decides whether a step may update.
    """

    def __init__(
        self,
        reducers: Mapping[int, GradientReducer],
        optimizers: Mapping[int, torch.optim.Optimizer],
        num_backwards: Mapping[int, int],
        policy: LrPolicy,
        base_table_lr: float,
        guard: StepGuard,
    ) -> None:
        self.guard = guard
        self.optimizers, self.policy = optimizers, policy
        self._reducers, self._num_backwards, self._base_table_lr = reducers, num_backwards, base_table_lr
        self._base_lrs = {s: [group["lr"] for group in rule.param_groups] for s, rule in optimizers.items()}
        self.begin()

    def begin(self) -> None:
        """Zeroes gradients, for a first step or after one that was given up."""
        for stage, reducer in self._reducers.items():
            reducer.begin(self._num_backwards[stage])

    def table_lr(self, step: int) -> float:
        """Learning rate of table rows in `step`."""
        return self._base_table_lr * self.policy.factor(step)

    def backward_done(self, stage: int) -> None:
        """One backward pass of a stage has ended."""
        self._reducers[stage].backward_done()

    def reduce(self, stage: int) -> None:
        """Starts what has not left of a stage's gradients."""
        self._reducers[stage].start()

    def check_loss(self, value: float, place: str) -> None:
        """Looks at the loss of a microbatch before its backward; see `StepGuard.loss`."""
        self.guard.loss(value, place)

    def settle(self, step: int) -> bool:
        """Waits for the gradients of all stages; whether the step may update. Before its first update on this rank."""
        for reducer in self._reducers.values():
            reducer.finish()
        return self.guard.settle({stage: reducer.gradients for stage, reducer in self._reducers.items()}, step)

    def optimize(self, stage: int, step: int, update: bool) -> None:
        """Updates a stage's weights once, unless the step is left out, and zeroes its gradients."""
        reducer, rule = self._reducers[stage], self.optimizers.get(stage)
        if rule is not None and update:
            for group, base in zip(rule.param_groups, self._base_lrs[stage], strict=True):
                group["lr"] = base * self.policy.factor(step)
            rule.step()
        reducer.begin(self._num_backwards[stage])


class Trainer(Scorer):
    """What moves the weights.

    Args:
        model, tables, forward: as in `Scorer`.
        executor: executes the training order.
        updates: the dense side.
    """

    def __init__(
        self, model: Model, tables: ShardedTables, forward: Executor, executor: Executor, updates: DenseUpdates
    ) -> None:
        super().__init__(model, tables, forward)
        self.executor, self.updates = executor, updates
        self.step = 0

    @property
    def policy(self) -> LrPolicy:
        """Factor on the learning rates."""
        return self.updates.policy

    @property
    def dense_optimizers(self) -> Mapping[int, torch.optim.Optimizer]:
        """By stage, those of this rank."""
        return self.updates.optimizers

    def run(self, batches: Iterator[Batch]) -> Iterator[StepResult]:
        """Trains on one batch a step; the same number of batches on every rank.

        Raises:
            TrainingError: a loss or gradient is not finite; nothing of that step has been updated.
        """
        for result in self.executor.run(batches, self.step):
            self.step += 1
            yield result
