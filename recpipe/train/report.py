"""What a run shows and writes: progress, metrics.jsonl, TensorBoard. Only rank 0 has one that does anything."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)


class Reporter:
    """Progress and metrics of a run.

    Args:
        folder: the run directory; None on ranks that are silent.
        total_steps: of the whole run.
        progress: auto, bar, plain or none.
        tensorboard: write events to the run directory.
    """

    def __init__(self, folder: Path | None, total_steps: int, progress: str, tensorboard: bool) -> None:
        self._folder = folder
        self._total = total_steps
        self._bar: Progress | None = None
        self._plain = False
        self._writer: Any = None
        self._last_line = 0.0
        if folder is None:
            return
        show_bar = progress == "bar" or (progress == "auto" and sys.stdout.isatty())
        self._plain = not show_bar and progress != "none"
        if show_bar:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"))
            self._bar = Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console())
            self._task = self._bar.add_task("train", total=total_steps, note="")
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.close()

    def progress(self, step: int) -> None:
        """One more step done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def metrics(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        """Metrics of training so far: a line in metrics.jsonl, shown with the progress."""
        self._write({"step": step, "epoch": epoch, "split": "train", **values})
        note = f"{values['rows_per_s']:,.0f} rows/s  loss {values['loss']:.4f}  NE {values['window_ne'] or 0:.4f}"
        if self._bar is not None:
            self._bar.update(self._task, note=note)
        elif self._plain and (time.monotonic() - self._last_line > 5 or step == self._total):
            self._last_line = time.monotonic()
            self.say(f"step {step}/{self._total}  epoch {epoch}  {note}")

    def validation(self, step: int, epoch: int, split: str, values: dict[str, Any], remarks: list[str]) -> None:
        """Metrics of a held-out split."""
        self._write({"step": step, "epoch": epoch, "split": split, **values})
        self.say(f"{split} at step {step}: {one_line(values)}")
        for remark in remarks:
            self.warn(remark)

    def say(self, text: str) -> None:
        """A line for people."""
        if self._folder is not None:
            if self._bar is not None:
                self._bar.console.print(text, highlight=False, markup=False)
            else:
                logger.info(text)

    def warn(self, text: str) -> None:
        """A line that people should not miss."""
        if self._folder is not None:
            logger.warning(text)

    def _write(self, values: dict[str, Any]) -> None:
        if self._folder is None:
            return
        with (self._folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")
        if self._writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._writer.add_scalar(f"{values['split']}/{name}", value, values["step"])


def one_line(values: dict[str, Any]) -> str:
    """The metrics people look at, base rate beside accuracy."""
    names = ("auc", "logloss", "ne", "calibration", "accuracy", "ctr", "rows")
    parts = []
    for name in names:
        value = values.get(name)
        if value is None:
            parts.append(f"{name} -")
        else:
            parts.append(f"{name} {value:,.0f}" if name == "rows" else f"{name} {value:.4f}")
    return "  ".join(parts)
