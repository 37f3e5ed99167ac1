"""A run that has come to its end: what there is to say when somebody resumes it. Nothing is loaded for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recpipe.errors import CheckpointError
from recpipe.train.config_text import from_yaml
from recpipe.train.report import one_line
from recpipe.untrusted import Source

_METRICS = {"auc", "logloss", "ne", "calibration", "accuracy", "ctr", "test_rows"}


def finished_run(cfg: Any) -> str:
    """What to say instead of resuming a run that has nothing left to train; empty where there is something.

    Args:
        cfg: `recpipe.train.config.TrainConfig`; with `resume`.
    """
    folder = _run_to_resume(cfg)
    if folder is None or not (folder / "summary.json").is_file():
        return ""
    if cfg.save_checkpoint and not (folder / "checkpoints" / "final").is_dir():
        return ""
    # It is written when everything else is, and taken away when a run goes on.
    if _has_other_rows(folder, cfg):
        return ""
    summary = _summary(folder / "summary.json")
    patience, since = cfg.early_stopping.patience, summary.get("validations_since_best", 0)
    stopped_early = bool(patience) and since >= patience
    if not stopped_early and summary.get("epochs", 0) < cfg.epochs:
        return ""
    more = f"epochs={cfg.epochs + 1}"
    if stopped_early:
        more = f"early_stopping.patience above {patience}; it ended after {since} validations without a better one"
    return "\n".join(_lines(folder, summary, more))


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a run, where its numbers are numbers."""
    source = Source(path, CheckpointError, "remove it, and the run goes on", non_finite=True)
    known = source.json().fields(("steps", "epochs", "rows"))
    for name in ("steps", "epochs", "rows", "validations_since_best", "best_step"):
        if name in known:
            known[name].integer()
    for name in _METRICS & known.keys():
        known[name].is_number_or_null()
    valid = known.get("valid")
    for value in valid.fields().values() if valid is not None and valid.raw is not None else ():
        value.is_number_or_null()
    if "split" in known:
        known["split"].text()
    return {name: value.raw for name, value in known.items()}


def _has_other_rows(folder: Path, cfg: Any) -> bool:
    """The settings name other training rows than the run had."""
    if not (folder / "config.yaml").is_file():
        return False
    before = from_yaml((folder / "config.yaml").read_text(), folder / "config.yaml").data.get("path")
    return bool(before != cfg.data.get("path"))


def _run_to_resume(cfg: Any) -> Path | None:
    """The run directory that is to go on; None for a new run, a branch, or a place in the middle of a run."""
    text = cfg.run.dir if cfg.resume == "auto" else cfg.resume
    if not text:
        return None
    folder = Path(text)
    if folder.parent.name == "checkpoints":
        if folder.name != "final":
            return None
        folder = folder.parent.parent
    branch = bool(cfg.run.dir) and Path(cfg.run.dir).resolve() != folder.resolve()
    return None if branch else folder


def _lines(folder: Path, summary: dict[str, Any], more: str) -> list[str]:
    lines = [
        f"{folder} is complete: {summary['steps']:,} steps, {summary['epochs']} epochs, {summary['rows']:,} rows; "
        f"nothing is left to train"
    ]
    if summary.get("test_rows"):
        lines.append(f"{summary['split']}: {one_line({**summary, 'rows': summary['test_rows']})}")
    if summary.get("valid"):
        lines.append(f"best validation, at step {summary['best_step']}: {one_line(summary['valid'])}")
    lines.append(f"to train on: {more}")
    final = folder / "checkpoints" / "final"
    return [*lines, f"to score it again: recpipe eval checkpoint={final}"] if final.is_dir() else lines
