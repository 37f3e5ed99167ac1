"""What can be said of settings before a worker starts: no torch here, so that a launcher can say it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.data.names import feature_names
from recpipe.embedding.placement import place_tables, placement_options
from recpipe.errors import ConfigError, PlanError, nearest
from recpipe.schedule.passes.embedding import MODES
from recpipe.specs import TableSpec
from recpipe.train.config import CHOICES
from recpipe.train.overwriting import MAY_STAY, require_ours

# Rows of some models are wider than their vectors; what depends on that is checked where tables are built.
_WIDE = 1 << 20


def check_choices(cfg: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Settings that are one of a few names; those that `cfg` does not have are not checked. Raises ConfigError."""
    for key, known in choices.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and value not in known:
            raise ConfigError(f"{key}={value}: unknown; {nearest(str(value), known)}")


def check_settings(cfg: Any) -> None:
    """Values that cannot be meant, or do not fit each other. Raises ConfigError."""
    check_choices(cfg, CHOICES)
    if cfg.schedule.embedding == "none":
        raise ConfigError(
            "schedule.embedding=none: a run needs the rows of its tables, only recpipe simulate can do without; "
            f"write one of {', '.join(MODES[1:])}"
        )
    for key in ("compute_dtype", "exchange.wire_dtype", "exchange.dense_wire_dtype"):
        value = attrgetter(key)(cfg)
        if value is not None and cfg.dtype != "float32":
            raise ConfigError(f"{key}={value} with dtype={cfg.dtype}: 16 bits go with dtype=float32; set that, too")
    for name, rule in (("table", cfg.optimizer.table), ("dense", cfg.optimizer.dense)):
        if rule.learning_rate < 0:
            raise ConfigError(f"optimizer.{name}.learning_rate={rule.learning_rate}: must not be negative")
    clip_norm = cfg.optimizer.dense.clip_norm
    if clip_norm is not None and not clip_norm > 0:
        raise ConfigError(f"optimizer.dense.clip_norm={clip_norm}: must be positive, or null for none")
    for name in ("batch_size", "epochs"):
        if getattr(cfg, name) < 1:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must be at least 1")


def check_tables(cfg: Any, world: int) -> None:
    """Where tables shall lie, as far as names and ranks tell.

    Raises:
        ConfigError: a name is no table, a rank does not exist, or a table has fewer columns than ranks.
    """
    names = feature_names(cfg.data)
    if names is None or cfg.plan:
        return
    dim = cfg.model.embedding_dim if cfg.model.name == "dlrm" else _WIDE
    try:
        place_tables([TableSpec(f"t_{name}", name, 1, dim) for name in names], world, placement_options(cfg))
    except PlanError as error:
        raise ConfigError(str(error)) from None


def require_free(folder: Path, overwrite: bool) -> None:
    """Raises ConfigError where a new run would lie among the files of another, or overwrite what no run wrote."""
    held = folder.is_dir() and any(path.name not in MAY_STAY for path in folder.iterdir())
    if held and not overwrite:
        raise ConfigError(
            f"run.dir={folder} holds files; choose another directory, set run.overwrite=true, or go on with resume=auto"
        )
    if held:
        require_ours(folder)


def require_checkpoint(folder: Path) -> None:
    """Raises CheckpointError where nothing is that could be a checkpoint, or a run that has some."""
    if not (folder / "manifest.json").is_file() and not (folder / "checkpoints").is_dir():
        # The words for it, with torch.
        from recpipe.train.checkpoint_manifest import check_folder

        check_folder(folder)
