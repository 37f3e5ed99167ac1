"""What each worker of `recpipe score` runs: from a file of rows to a file of scores, at any number of ranks."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch

from recpipe.comm import Groups
from recpipe.data import Dataset, open_dataset
from recpipe.data.config import SCHEMAS
from recpipe.data.dataset import SPLITS
from recpipe.data.prepare.given import as_dicts, encode_given, given_dataset
from recpipe.data.prepare.job import prepare
from recpipe.data.prepared import read_manifest
from recpipe.data.scores import write_scores
from recpipe.errors import ConfigError
from recpipe.train import checkpoint
from recpipe.train.config_text import from_yaml
from recpipe.train.evaluate import score_split
from recpipe.train.metrics import evaluate
from recpipe.train.ranks import watch
from recpipe.train.report import one_line
from recpipe.train.setup import build_scorer
from recpipe.train.state import check_schema, read_schema, weights
from recpipe.train.taken import take_places

logger = logging.getLogger(__name__)


def run_score(cfg: Any, groups: Groups) -> int:
    """Scores every line of `cfg.input` with a checkpoint. Collective; gives the exit code."""
    folder, output = checkpoint.choose(Path(cfg.checkpoint), groups), Path(cfg.output)
    trained = from_yaml(checkpoint.read_text(folder, "config.yaml"), folder / "config.yaml")
    take_places(trained, (), folder)
    trained.tables, trained.exchange.kind = cfg.tables, "window"
    work = output.with_name(f".{output.name}.rows")
    try:
        dataset, split = _rows(cfg, trained, work, groups)
        check_schema(read_schema(folder), dataset.schema)
        scorer = build_scorer(trained, dataset, groups)
        checkpoint.load(folder, weights(scorer), groups)
        size = cfg.test_batch_size or trained.test_batch_size or trained.batch_size
        with watch(cfg, groups, lambda: scorer.scored):
            logits, labels = score_split(scorer, dataset, split, groups, size, None)
        if groups.rank == 0:
            _finish(cfg.input, output, logits, labels)
    finally:
        if groups.rank == 0:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def _finish(name: str, output: Path, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Writes the scores, and says how good they are where labels are known."""
    write_scores(output, torch.sigmoid(logits).numpy())
    known = ~labels.isnan()
    if known.any():
        logger.info("%s: %s", name, one_line(evaluate(logits[known], labels[known])[0]))
    logger.info("wrote %d scores to %s", len(logits), output)


def _rows(cfg: Any, trained: Any, work: Path, groups: Groups) -> tuple[Dataset, str]:
    """The rows to score, and their split: those of the file, encoded once, by rank 0, as training rows were."""
    if trained.data.name == "synthetic":
        return _synthetic_rows(cfg.input, trained), cfg.input
    data, known = _vocabularies(trained.data, cfg.prepared)
    text = ""
    if groups.rank == 0:
        text = json.dumps([str(known), as_dicts(encode_given(data, cfg.input, Path(known), work, logger.info))])
    known, records = json.loads(groups.broadcast_text(text))
    return given_dataset(data, records, Path(known), work, cfg.input), "test"


def _synthetic_rows(split: str, trained: Any) -> Dataset:
    """Synthetic rows come from no file; those of a split can be made again."""
    if split not in SPLITS:
        raise ConfigError(
            f"input={split}: this model was trained on synthetic rows, which come from no file; input=test scores those of "
            f"a split ({', '.join(SPLITS)})"
        )
    # Rows of training come in an order of their own.
    trained.data.shuffle = "none"
    return open_dataset(trained.data, trained.seed)


def _vocabularies(data: Any, prepared: str) -> tuple[Any, str]:
    """How the training rows were read, and the prepared directory that has their vocabularies."""
    known = prepared or (data.path if data.name == "prepared" else "")
    if not known:
        known = str(prepare(data, logger.info))
    settings = read_manifest(Path(known))["provenance"]["settings"]
    record = SCHEMAS["criteo" if data.name == "criteo" else settings.get("name", "table")]
    # Every line has to get a score: none may be dropped.
    kept = {key: value for key, value in settings.items() if key in record.__dataclass_fields__ and key != "name"}
    return record(**{**kept, "shuffle": "none", "non_finite": "error", "bad_ids": "error"}), known
