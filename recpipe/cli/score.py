"""``recpipe score``: a score for every line of a file. The work is in `recpipe.train.score`; this starts the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recpipe.train.config import LaunchConfig, TablesConfig

CONFIG = "score"
HELP = "Score a file of rows, with or without labels: recpipe score checkpoint=DIR input=FILE output=FILE."


@dataclass
class ScoreConfig:
    """Root of ``conf/score.yaml``.

    Args:
        checkpoint: a directory such as ``runs/train/.../checkpoints/final``, or that of a run: its newest whole one.
        input: a file, or a directory of files, in the form of the training files; labels may be missing. Synthetic rows: a
            split.
        output: scores in row order: Parquet where the name ends in .parquet, else a number a line.
        output_columns: columns of the input that are written beside the scores, as ``[id, time]``; the output is then a
            table: Parquet, or CSV with a header.
        prepared: for a checkpoint of an older version, which has no encoding: the prepared directory of its training rows;
            empty: where the run found it.
    """

    checkpoint: str = ""
    input: str = ""
    output: str = ""
    output_columns: list[str] = field(default_factory=list)
    prepared: str = ""
    tables: TablesConfig = field(default_factory=TablesConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    test_batch_size: int | None = None


SCHEMA = ScoreConfig


def main(cfg: Any) -> int:
    """Runs `cfg` on `launch.nproc` local workers or on the ones found. Returns the exit code."""
    from recpipe.data.scores import check_columns
    from recpipe.train.check import require_checkpoint
    from recpipe.train.launch import launch_workers
    from recpipe.train.work import score

    require_checkpoint(Path(cfg.checkpoint))
    check_columns(list(cfg.output_columns))
    return launch_workers(score, cfg.launch.nproc, cfg, max_restarts=cfg.launch.max_restarts)
