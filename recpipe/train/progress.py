"""How far a run has come: what a checkpoint keeps besides tensors, and nothing that depends on ranks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from recpipe.untrusted import Value, typed

_WARM_UP_STEPS = 5


@dataclass
class Clock:
    """Time spent in training steps, without validation and without the first steps of a process."""

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
    """The best validation so far.

    Args:
        value: larger is better, whatever the metric.
        since: validations since then.
    """

    value: float = -math.inf
    step: int = 0
    epoch: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    since: int = 0


@dataclass
class Progress:
    """Where a run stands between two steps.

    Args:
        epoch: the current one.
        row: global row of the epoch that the next step begins with.
        rows: rows trained in the whole run.
        global_batch: rows of a full step.
        batch_size: setting that they followed from; a run that goes on with other replicas keeps its rows, and has another one.
        train_rows: rows of the training split.
        validated: step of the last validation; -1 before the first.
        skipped: steps left out because a loss or gradient was not finite.
        left: the split whose scoring a signal cut short; it comes first when the run goes on.
        finished: nothing is left to train.
        resumable: the weights are those that this place was reached with (not the best ones of an earlier step).
        best: the best validation.
        window_row: rows that the metric window has seen.
        dropped_rows, bad_ids: what the data policies met, over all ranks.
    """

    epoch: int = 0
    row: int = 0
    rows: int = 0
    global_batch: int = 0
    batch_size: int = 0
    train_rows: int = 0
    validated: int = -1
    skipped: int = 0
    left: str = ""
    finished: bool = False
    resumable: bool = True
    best: Best = field(default_factory=Best)
    window_row: int = 0
    dropped_rows: int = 0
    bad_ids: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For `progress.json`."""
        return asdict(self)

    @staticmethod
    def from_json(saved: Value) -> Progress:
        """What `to_json` gave, read from a file.

        Raises:
            RecpipeError: of the file's kind; a field is missing, unknown or of another type.
        """
        known = saved.fields(("epoch", "row", "rows", "global_batch", "best"), Progress.__dataclass_fields__)
        kinds = {"finished": "flag", "resumable": "flag"}
        counts = dict.fromkeys(known.keys() - {*kinds, "best", "bad_ids", "validated", "left"}, "integer")
        values = typed(known, {**kinds, **counts})
        if "validated" in known:
            values["validated"] = known["validated"].integer(-1)
        if "left" in known:
            values["left"] = known["left"].text(("", "valid", "test"))
        if "bad_ids" in known:
            values["bad_ids"] = {name: count.integer() for name, count in known["bad_ids"].fields().items()}
        return Progress(**values, best=_best(known["best"]))


def _best(saved: Value) -> Best:
    known = saved.fields((), Best.__dataclass_fields__)
    values = typed(known, dict.fromkeys(("step", "epoch", "since"), "integer"))
    if "value" in known:
        values["value"] = known["value"].number(-math.inf)
    if "report" in known:
        values["report"] = {name: one.raw for name, one in known["report"].fields().items() if one.is_number_or_null()}
    return Best(**values)
