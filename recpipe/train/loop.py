"""Epochs, validation, early stopping: the loop around `Trainer.train`."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recpipe.data import Loader
from recpipe.errors import TrainingError
from recpipe.runtime.running import StepResult
from recpipe.train import checkpoint
from recpipe.train.evaluate import evaluate_split
from recpipe.train.feed import Feed
from recpipe.train.metric_window import MetricWindow
from recpipe.train.report import Reporter
from recpipe.train.setup import Job
from recpipe.train.state import everything, schema_json, weights

_WARM_UP_STEPS = 5


@dataclass
class Clock:
    """Time spent in training steps, without validation and without the first steps."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    all_rows: int = 0
    all_seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        self.steps += 1
        self.all_rows += rows
        self.all_seconds += seconds
        if self.steps > _WARM_UP_STEPS:
            self.rows += rows
            self.seconds += seconds

    @property
    def rows_per_s(self) -> float:
        """After the warm-up, or of all steps where there were no more."""
        rows, seconds = (self.rows, self.seconds) if self.rows else (self.all_rows, self.all_seconds)
        return rows / seconds if seconds else 0.0


@dataclass
class Best:
    """The best validation so far."""

    value: float = -math.inf
    step: int = 0
    epoch: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    since: int = 0


class TrainingLoop:
    """Trains for the configured epochs.

    Args:
        job: the parts of this rank.
        folder: run directory (the same on all ranks).
        config_text: the configuration as YAML, saved beside weights.
    """

    def __init__(self, job: Job, folder: Path, config_text: str) -> None:
        self.job, self.folder, self.config_text = job, folder, config_text
        cfg = job.cfg
        self.feed = Feed(
            job.dataset.num_rows("train"),
            cfg.batch_size,
            job.mesh.replicas,
            cfg.drop_last_training_batch,
            cfg.limit_train_batches,
            parts=job.place.placement.num_replicas,
        )
        self.clock, self.best = Clock(), Best()
        self.window = MetricWindow(cfg.log.window_rows)
        self.bytes_sent: dict[str, int] = {}
        self._last_loss = torch.zeros(2, dtype=torch.float64)

    @property
    def total_steps(self) -> int:
        return self.feed.num_steps * self.job.cfg.epochs

    def run(self, reporter: Reporter) -> None:
        """All epochs; afterwards the best weights are in place where early stopping is on."""
        for epoch in range(self.job.cfg.epochs):
            rows = self._epoch(epoch, reporter)
            self._check_rows(epoch, rows)
            if self._should_stop():
                reporter.say(f"early stopping: no better {self.job.cfg.early_stopping.metric} since step {self.best.step}")
                break
        if self.job.cfg.early_stopping.patience and self.best.step:
            checkpoint.load(self._best_folder(), weights(self.job.trainer), self.job.groups)

    def evaluate(self, split: str) -> tuple[dict[str, Any], list[str]]:
        """Metrics of a split with the weights as they are."""
        cfg = self.job.cfg
        limit = cfg.limit_val_batches if split == "valid" else cfg.limit_test_batches
        size = cfg.test_batch_size or cfg.batch_size
        return evaluate_split(self.job.trainer, self.job.dataset, split, self.job.groups, size, limit)

    def save(self, name: str) -> Path:
        """Writes a checkpoint of the run; collective."""
        target = self.folder / "checkpoints" / name
        texts = {"config.yaml": self.config_text, "schema.json": schema_json(self.job.dataset.schema)}
        checkpoint.save(target, everything(self.job.trainer), texts, self.job.groups)
        return target

    def _epoch(self, epoch: int, reporter: Reporter) -> int:
        """Trains every row of an epoch once; gives the rows trained, dropped ones included."""
        job, cfg = self.job, self.job.cfg
        shares = self.feed.shares(job.place.consumer)
        batches = iter(Loader(job.dataset, "train", epoch, shares, cfg.data.num_workers))
        trained, dropped, validated = 0, 0, -1
        start = time.perf_counter()
        for result in job.trainer.run(batches):
            self.clock.add(result.global_rows, time.perf_counter() - start)
            trained += result.global_rows
            dropped += result.num_dropped
            self._after_step(epoch, result, reporter)
            if self._is_validation_step():
                validated = job.trainer.step
                self._validate(epoch, reporter)
                if self._should_stop():
                    break
            start = time.perf_counter()
        if validated != job.trainer.step:
            self._validate(epoch, reporter)
        return trained + int(job.groups.sum_cpu(torch.tensor([dropped])))

    def _after_step(self, epoch: int, result: StepResult, reporter: Reporter) -> None:
        step, job = self.job.trainer.step, self.job
        self.window.update(result.logits_B, result.labels_B, result.global_rows)
        self._last_loss += torch.tensor([result.loss, 1 / job.groups.world], dtype=torch.float64)
        reporter.progress(step)
        if step % job.cfg.log.every_steps and step != self.total_steps:
            return
        loss, steps = job.groups.sum_cpu(self._last_loss.clone()).tolist()
        state = job.groups.sum_cpu(self.window.state.clone())
        self._last_loss.zero_()
        factor = job.trainer.policy.factor(step - 1)
        values = {"loss": loss / steps, "rows_per_s": self.clock.rows_per_s, "learning_rate_factor": factor}
        reporter.metrics(step, epoch, {**values, **self.window.reports(state)})

    def _is_validation_step(self) -> bool:
        every = self.job.cfg.validation_freq_within_epoch
        return bool(every) and self.job.trainer.step % every == 0

    def _validate(self, epoch: int, reporter: Reporter) -> None:
        if not self.job.dataset.num_rows("valid"):
            return
        sent = dict(self.job.traffic.sent)
        report, remarks = self.evaluate("valid")
        # Validation is not part of what a training step sends.
        self.job.traffic.sent.clear()
        self.job.traffic.sent.update(sent)
        reporter.validation(self.job.trainer.step, epoch, "valid", report, remarks)
        self._remember(epoch, report)

    def _remember(self, epoch: int, report: dict[str, Any]) -> None:
        metric = self.job.cfg.early_stopping.metric
        value = report.get(metric)
        score = -math.inf if value is None else value if metric == "auc" else -value
        if score > self.best.value:
            previous = self.best.step
            self.best = Best(score, self.job.trainer.step, epoch, report)
            if self.job.cfg.early_stopping.patience:
                self.save(f"best-{self.best.step}")
                if previous and self.job.groups.rank == 0:
                    shutil.rmtree(self.folder / "checkpoints" / f"best-{previous}")
        else:
            self.best.since += 1

    def _best_folder(self) -> Path:
        return self.folder / "checkpoints" / f"best-{self.best.step}"

    def _should_stop(self) -> bool:
        patience = self.job.cfg.early_stopping.patience
        return bool(patience) and self.best.since >= patience

    def _check_rows(self, epoch: int, rows: int) -> None:
        if rows != self.feed.num_used_rows and not self._should_stop():
            raise TrainingError(f"epoch {epoch} trained {rows} rows of {self.feed.num_used_rows}")
