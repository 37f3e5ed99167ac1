"""Models with a block whose result depends on how the rows of a step are cut: refused unless a step is one piece.

Standard library only: a launcher can say it of the settings that it knows, a worker says it of every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from recpipe.errors import ConfigError
from recpipe.schedule.ir import Program

BATCH_NORM = "model.batch_norm=true: batch normalisation couples rows"


class CouplingLike(Protocol):
    """As `recpipe.model.coupling.Coupling`."""

    @property
    def block(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def has_statistics(self) -> bool: ...

    @property
    def least_rows(self) -> int: ...


def check_settings_of(cfg: Any, program: Program) -> None:
    """What the settings alone say. Raises ConfigError."""
    if getattr(cfg.model, "batch_norm", False):
        _require_one_piece(BATCH_NORM, cfg, program)
        _check_statistics(BATCH_NORM, cfg)


def check_couplings(couplings: Sequence[CouplingLike], cfg: Any, program: Program, num_rows: int) -> None:
    """The same for every block of a model, a user's own included.

    Args:
        couplings: of the model.
        cfg: `recpipe.train.config.TrainConfig`.
        num_rows: rows of an epoch.

    Raises:
        ConfigError: a step is cut in pieces, or has too few rows for a block.
    """
    for one in couplings:
        reason = f"block {one.block}: {one.why}"
        _require_one_piece(reason, cfg, program)
        if one.has_statistics:
            _check_statistics(reason, cfg)
        last = num_rows % int(cfg.batch_size)
        if 0 < last < one.least_rows and not cfg.drop_last_training_batch:
            raise ConfigError(
                f"{reason}: the last step of an epoch of {num_rows} rows has {last}, too few for it; set "
                f"drop_last_training_batch=true, or another batch_size"
            )


def _require_one_piece(reason: str, cfg: Any, program: Program) -> None:
    lanes, pipes, pieces = program.lanes, program.placement.num_replicas, program.microbatches
    if lanes * pipes * pieces == 1:
        return
    cut = [f"{lanes} replicas"] * (lanes > 1) + ["2 directions of the pipeline"] * (pipes > 1)
    cut += [f"{pieces} microbatches"] * (pieces > 1)
    world = program.num_ranks
    whole = "launch.nproc=1" if world == 1 else f"mesh.stages={world} or launch.nproc=1"
    raise ConfigError(
        f"{reason}, so its result depends on how the rows of a step are cut, here in {' x '.join(cut)}: "
        f"nothing would be exact. A step in one piece is: schedule=1f1b schedule.microbatches=1 and {whole}"
        + ("; or model.batch_norm=false" if getattr(cfg.model, "batch_norm", False) else "")
    )


def _check_statistics(reason: str, cfg: Any) -> None:
    if int(cfg.batch_size) < 2:
        raise ConfigError(f"{reason}: batch_size={cfg.batch_size} gives no variance; set batch_size=2 or more")
    if cfg.guard.non_finite == "skip":
        raise ConfigError(
            f"{reason}: with guard.non_finite=skip a step that is left out would still move its running statistics; "
            f"set guard.non_finite=stop"
        )
