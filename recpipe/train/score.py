"""What each worker of `recpipe score` runs: from a file of rows to a file of scores, at any number of ranks."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch

from recpipe.comm import Groups
from recpipe.data.scores import write_scores
from recpipe.errors import ConfigError
from recpipe.train import checkpoint
from recpipe.train.config_text import from_yaml
from recpipe.train.evaluate import score_split
from recpipe.train.metrics import evaluate
from recpipe.train.ranks import watch
from recpipe.train.report import one_line
from recpipe.train.rows import OF_THE_RUN, Chosen, Wanted, given_rows, synthetic_rows
from recpipe.train.setup import build_scorer
from recpipe.train.state import check_schema, read_schema, weights
from recpipe.train.taken import take_places

logger = logging.getLogger(__name__)


def run_score(cfg: Any, groups: Groups) -> int:
    """Scores every line of `cfg.input` with a checkpoint. Collective; gives the exit code."""
    folder, output = checkpoint.choose(Path(cfg.checkpoint), groups), Path(cfg.output)
    trained = from_yaml(checkpoint.read_text(folder, "config.yaml"), folder / "config.yaml")
    take_places(trained, OF_THE_RUN, folder)
    trained.tables, trained.exchange.kind, trained.launch = cfg.tables, "window", cfg.launch
    work = output.with_name(f".{output.name}.rows")
    try:
        rows = _rows(cfg, folder, trained, work, groups)
        check_schema(read_schema(folder), rows.dataset.schema)
        scorer = build_scorer(trained, rows.dataset, groups)
        checkpoint.load(folder, weights(scorer), groups)
        size = cfg.test_batch_size or trained.test_batch_size or trained.batch_size
        with watch(cfg, groups, lambda: scorer.scored):
            logits, labels = score_split(scorer, rows.dataset, rows.split, groups, size, None)
        if groups.rank == 0:
            _finish(rows, output, logits, labels)
    finally:
        if groups.rank == 0:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def _rows(cfg: Any, folder: Path, trained: Any, work: Path, groups: Groups) -> Chosen:
    """The rows to score: every line of the file."""
    if trained.data.name == "synthetic":
        if cfg.output_columns:
            raise ConfigError("output_columns: synthetic rows come from no file, and have no columns to carry along")
        return Chosen(synthetic_rows(cfg.input, trained), cfg.input, cfg.input)
    wanted = Wanted(cfg.input, prepared=cfg.prepared, columns=tuple(cfg.output_columns))
    return given_rows(folder, trained, wanted, work, groups)


def _finish(rows: Chosen, output: Path, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Writes the scores, and says how good they are where labels are known."""
    write_scores(output, torch.sigmoid(logits).numpy(), rows.columns)
    known = ~labels.isnan()
    if known.any():
        logger.info("%s: %s", rows.said, one_line(evaluate(logits[known], labels[known])[0]))
    logger.info("wrote %d scores to %s", len(logits), output)
