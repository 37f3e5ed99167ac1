"""Epochs, validation, checkpoints, early stopping: the loop around `Trainer.run`."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recpipe.batch import Batch
from recpipe.errors import ConfigError, TrainingError
from recpipe.runtime.running import StepResult
from recpipe.train import checkpoint
from recpipe.train.agreement import Agreement
from recpipe.train.checkpoint_manifest import MANIFEST
from recpipe.train.checkpoint_saver import Content, Saver
from recpipe.train.encoded import Kept, keep_encoding
from recpipe.train.evaluate import ScoringLeft, evaluate_split
from recpipe.train.feed import Feed
from recpipe.train.interrupt import Interruption
from recpipe.train.metric_window import MetricWindow
from recpipe.train.progress import Best, Clock, Progress
from recpipe.train.reading import read_batches
from recpipe.train.report import Reporter
from recpipe.train.resume import Source, restore, rows_per_step
from recpipe.train.run_dir import drop_line
from recpipe.train.setup import Job
from recpipe.train.state import LOSS, WINDOW, everything, run_tensors, schema_json, weights
from recpipe.train.summary import plan_json, versions
from recpipe.train.warm import seconds_since_start


class TrainingLoop:
    """Trains for the configured epochs.

    Args:
        job: the parts of this rank.
        folder: run directory (the same on all ranks).
        config_text: the configuration as YAML, saved beside weights.
        source: a checkpoint to go on from; its weights are put in place.
        interruption: tells when to leave early.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        config_text: str,
        source: Source | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        self.job, self.folder, self.config_text = job, folder, config_text
        cfg = job.cfg
        self._whole = Feed(
            job.dataset.num_rows("train"),
            cfg.batch_size,
            job.mesh.replicas,
            cfg.drop_last_training_batch,
            cfg.limit_train_batches,
            rows_per_step=rows_per_step(source, cfg),
            parts=job.place.placement.num_replicas,
        )
        self.clock, self.window = Clock(), MetricWindow(cfg.log.window_rows)
        self.progress = Progress() if source is None else source.progress
        self.progress.train_rows, self.progress.global_batch = self._whole.num_rows, self._whole.global_batch
        if self._whole.rows_per_step is None:
            self.progress.batch_size = cfg.batch_size
        # What a checkpoint has counted over all ranks belongs to none of them.
        self._counted = (self.progress.dropped_rows, dict(self.progress.bad_ids))
        self.source, self._interruption = source, interruption or Interruption()
        self._metric = cfg.checkpoint.keep_best or cfg.early_stopping.metric
        self._saver = Saver(cfg.checkpoint, self.checkpoints, job.groups)
        self._agreement = Agreement(job.groups)
        self._last_loss = torch.zeros(2, dtype=torch.float64)
        self._kept = keep_encoding(job.dataset.encoding, folder) if job.groups.rank == 0 else Kept()
        self._sums = {WINDOW: self.window.state, LOSS: self._last_loss}
        self._saved_at = -1
        self.interrupted = False
        self.seconds_to_first_step: float | None = None
        if source is not None:
            restore(job.trainer, self._sums, source, job.groups)
            self.window.resume(source.progress.window_row, source.cfg.log.window_rows)
        self.total_steps = job.trainer.step + self._steps_left()

    @property
    def checkpoints(self) -> Path:
        """Where the run's checkpoints lie."""
        return self.folder / "checkpoints"

    @property
    def feed(self) -> Feed:
        """What is left of the current epoch."""
        return replace(self._whole, start_row=min(self.progress.row, self._whole.num_rows))

    @property
    def best(self) -> Best:
        """The best validation so far."""
        return self.progress.best

    @property
    def saving_seconds(self) -> float:
        """Time for which training stood still for checkpoints."""
        return self._saver.seconds

    def _steps_left(self) -> int:
        epochs = self.job.cfg.epochs - self.progress.epoch
        return self.feed.num_steps + (epochs - 1) * self._whole.num_steps if epochs > 0 else 0

    def run(self, reporter: Reporter) -> None:
        """All epochs; afterwards the best weights are in place where early stopping is on.

        Leaves earlier, with a checkpoint, when interrupted: then `interrupted` is true.
        """
        if self.progress.left == "valid":
            self._validate(reporter)
        while not self.interrupted and self._trains():
            self._epoch(reporter)
            if not self.interrupted:
                self._close_epoch(reporter)
        self._agreement.close()
        self._saver.finish()
        if not self.interrupted:
            self.progress.finished = True
            self._take_best(reporter)

    def _trains(self) -> bool:
        """Whether something is left to train. Raises ConfigError where the weights to train on from are gone."""
        left = self.progress.epoch < self.job.cfg.epochs and not self._has_enough()
        if left and not self.progress.resumable:
            raise ConfigError(
                f"{self.source.folder if self.source else self.folder}: holds the best weights of a run that ended but for its "
                "last test: no place to train on from; resume it with the same epochs and early_stopping.patience"
            )
        return left

    def last_test(self, split: str, reporter: Reporter) -> dict[str, Any]:
        """Metrics of the end of the run, reported; empty where there are no rows, or where `interrupted` has become true."""
        if not self.job.dataset.num_rows(split):
            return {}
        found = self._score(split, "test")
        self._agreement.close()
        if found is None:
            return {}
        self.progress.left = ""
        reporter.validation(self.job.trainer.step, self.job.cfg.epochs - 1, split, *found)
        return found[0]

    def _score(self, split: str, left: str) -> tuple[dict[str, Any], list[str]] | None:
        """Metrics of a split; None where a signal cut it short: then a checkpoint says what is left, and the run stops."""
        if self.source is not None and self.source.step == self.job.trainer.step and self.job.groups.rank == 0:
            # A run that ended in between may have written the line already.
            drop_line(self.folder, self.source.step, split)
        try:
            return self.evaluate(split)
        except ScoringLeft:
            self.progress.left, self.interrupted = left, True
            self._keep_step()
            return None

    def _keep_step(self) -> None:
        """A checkpoint of this step, unless that would put the best weights in the place of the last ones; collective."""
        name = f"step-{self.job.trainer.step}"
        kept = self.job.groups.rank == 0 and (self.checkpoints / name / MANIFEST).is_file()
        if self.progress.resumable or not self.job.groups.broadcast_text("kept" if kept else ""):
            self.save(name)

    def evaluate(self, split: str) -> tuple[dict[str, Any], list[str]]:
        """Metrics of a split with the weights as they are; not part of what training sends. Raises ScoringLeft."""
        cfg, sent = self.job.cfg, dict(self.job.traffic.sent)
        limit = cfg.limit_val_batches if split == "valid" else cfg.limit_test_batches
        size = cfg.test_batch_size or cfg.batch_size
        try:
            return evaluate_split(
                self.job.trainer, self.job.dataset, split, self.job.groups, size, limit, lambda: self._told()[0]
            )
        finally:
            self.job.traffic.sent.clear()
            self.job.traffic.sent.update(sent)

    def save(self, name: str) -> bool:
        """Writes a checkpoint of the run, and says whether it could; collective."""
        done = self._saver.save(name, self._content(name))
        self._saver.prune(self.best.step or None)
        return done

    def finish_saving(self) -> bool:
        """Waits for a checkpoint that is written beside training; gives whether it came to its end. Collective."""
        return self._saver.finish()

    def counts(self) -> tuple[int, dict[str, int]]:
        """Rows dropped, and bad ids by feature, over all ranks and the whole run; collective."""
        policy, groups = self.job.dataset.policy, self.job.groups
        names = self.job.dataset.schema.feature_names
        mine = torch.tensor([policy.dropped_rows, *(policy.bad_id_counts.get(name, 0) for name in names)])
        dropped, *bad = groups.sum_cpu(mine).tolist()
        before, bad_before = self._counted
        totals = {name: count + bad_before.get(name, 0) for name, count in zip(names, bad, strict=True)}
        return dropped + before, {name: count for name, count in totals.items() if count}

    def _content(self, name: str) -> Content:
        job, progress = self.job, self.progress
        progress.dropped_rows, progress.bad_ids = self.counts()
        progress.window_row = self.window.global_rows
        place = {"step": job.trainer.step, "epoch": progress.epoch, "row": progress.row}
        saved = {"step": job.trainer.step, "progress": progress.to_json(), "versions": versions()}
        texts = {
            "config.yaml": self.config_text,
            "schema.json": schema_json(job.dataset.schema),
            "plan.json": plan_json(job.tables.layouts, job.groups.world),
            "progress.json": json.dumps(saved, indent=1),
            **self._kept.texts,
        }
        state = {**everything(job.trainer), **run_tensors(self._sums, job.groups)}
        notes = {"name": name, **place, "world_size": job.groups.world, "metrics": self.best.report}
        return Content(state, texts, notes, self._kept.links)

    def _epoch(self, reporter: Reporter) -> None:
        """Trains the rest of an epoch, every row once."""
        job, feed, rows = self.job, self.feed, 0
        start = time.perf_counter()
        for result in job.trainer.run(self._batches(feed)):
            self.clock.add(result.global_rows, time.perf_counter() - start)
            if self.clock.steps == 1:
                self.seconds_to_first_step = seconds_since_start()
                if self.seconds_to_first_step is not None:
                    reporter.say(f"first step done {self.seconds_to_first_step:.1f} s after the start of the command")
            rows += result.num_dropped + (result.global_rows if job.groups.rank == 0 else 0)
            self.progress.row = min(self.progress.row + feed.global_batch, feed.stop_row)
            self.progress.rows += result.global_rows
            if result.left_out:
                self.progress.skipped += 1
                reporter.say(f"WARNING: step {job.trainer.step - 1} was left out: a loss or gradient was not finite")
            self._after_step(result, reporter)
            if self._is_validation_step():
                self._validate(reporter)
            if self.interrupted or self._leaves() or self._has_enough():
                return
            start = time.perf_counter()
        total = int(job.groups.sum_cpu(torch.tensor([rows])))
        if total != feed.num_used_rows:
            raise TrainingError(f"epoch {self.progress.epoch} trained {total} rows of {feed.num_used_rows}")

    def _batches(self, feed: Feed) -> Iterator[Batch]:
        return read_batches(self.job, feed, self.progress.epoch)

    def _leaves(self) -> bool:
        """Writes a checkpoint where one is due; gives whether the run is to stop here."""
        step = self.job.trainer.step
        stop, late = self._told()
        # Flags are a step old: one from before the last checkpoint asks for that one.
        if stop or self._saver.is_due(step) or (late and step > self._saved_at + 1):
            self.save(f"step-{step}")
            self._saved_at = step
        self.interrupted = stop
        return stop

    def _told(self) -> tuple[bool, bool]:
        """Whether any rank was told to stop, and whether a checkpoint is late; collective, the answer a call old."""
        stop, late = self._agreement.exchange([self._interruption.number is not None, self._saver.is_late])
        if stop and self._interruption.number is None:
            # Another rank was told.
            self._interruption.number = signal.SIGTERM
        return stop, late

    def _close_epoch(self, reporter: Reporter) -> None:
        if self.progress.validated != self.job.trainer.step:
            self._validate(reporter)
            if self.interrupted:
                return
        self.progress.epoch, self.progress.row = self.progress.epoch + 1, 0
        if self.job.cfg.checkpoint.every_epoch:
            self.save(f"step-{self.job.trainer.step}")
        if self._has_enough():
            reporter.say(f"early stopping: no better {self._metric} since step {self.best.step}")

    def _after_step(self, result: StepResult, reporter: Reporter) -> None:
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
        reporter.metrics(step, self.progress.epoch, {**values, **self.window.reports(state)})

    def _is_validation_step(self) -> bool:
        every = self.job.cfg.validation_freq_within_epoch
        return bool(every) and self.job.trainer.step % every == 0

    def _validate(self, reporter: Reporter) -> None:
        self.progress.validated = self.job.trainer.step
        if not self.job.dataset.num_rows("valid"):
            return
        found = self._score("valid", "valid")
        if found is None:
            self.progress.validated = -1
            return
        self.progress.left = ""
        reporter.validation(self.job.trainer.step, self.progress.epoch, "valid", *found)
        self._remember(found[0])

    def _remember(self, report: dict[str, Any]) -> None:
        value = report.get(self._metric)
        score = -math.inf if value is None else value if self._metric == "auc" else -value
        if score > self.best.value:
            self.progress.best = Best(score, self.job.trainer.step, self.progress.epoch, report)
            if self.job.cfg.early_stopping.patience or self.job.cfg.checkpoint.keep_best:
                self.save(f"best-{self.best.step}")
        else:
            self.best.since += 1

    def _take_best(self, reporter: Reporter) -> None:
        """Early stopping tests, and leaves, the best weights."""
        if not self.job.cfg.early_stopping.patience or not self.best.step:
            return
        name = f"best-{self.best.step}"
        places = [self.checkpoints / name] + ([self.source.folder.parent / name] if self.source else [])
        found = [str(place) for place in places if place.is_dir()] if self.job.groups.rank == 0 else []
        chosen = self.job.groups.broadcast_text(found[0] if found else "")
        if not chosen:
            reporter.warn(f"WARNING: {name} could not be kept; what follows is of the last step, not of the best one")
            return
        checkpoint.load(Path(chosen), weights(self.job.trainer), self.job.groups)
        self.progress.resumable = self.best.step == self.job.trainer.step

    def _has_enough(self) -> bool:
        patience = self.job.cfg.early_stopping.patience
        return bool(patience) and self.best.since >= patience
