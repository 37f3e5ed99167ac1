"""Goes on from a checkpoint, at any number of ranks, under any plan, mesh, schedule or exchange.

Settings come from the checkpoint; the command line changes them. The global batch stays what it was, so that the same
rows meet in a step whatever the number of replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from recpipe.comm import Groups
from recpipe.data import Dataset
from recpipe.embedding.state import Entry
from recpipe.errors import CheckpointError, ConfigError
from recpipe.train import checkpoint
from recpipe.train.checkpoint_file import DTYPES
from recpipe.train.checkpoint_index import read_index
from recpipe.train.checkpoint_manifest import (
    MANIFEST,
    check_folder,
    checkpoints_in,
    find_damage,
    finish_publishing,
    whole_ones,
)
from recpipe.train.config_text import from_yaml
from recpipe.train.generators import seed_generators, set_host_state
from recpipe.train.progress import Progress
from recpipe.train.state import HOST_RANDOM, OPTIMIZER, RANDOM, check_schema, read_schema, run_tensors, weights
from recpipe.train.taken import take_settings
from recpipe.train.trainer import Trainer

logger = logging.getLogger(__name__)

# Settings that decide what is trained; others may differ in silence.
_DECIDE = ("model", "optimizer", "lr", "seed", "dtype", "guard", "batch_size", "data.shuffle", "data.shuffle_rows")
_DECIDE_ROWS = ("limit_train_batches", "drop_last_training_batch", "data.bad_ids", "data.non_finite")


@dataclass(frozen=True)
class Source:
    """A checkpoint to go on from.

    Args:
        folder: where it is.
        progress: how far the run had come.
        step: updates done.
        cfg: settings of the run that wrote it.
    """

    folder: Path
    progress: Progress
    step: int
    cfg: Any

    @property
    def run(self) -> Path:
        """The run directory that it belongs to."""
        return self.folder.parent.parent


def saved_settings(cfg: Any, given: Iterable[str]) -> Any:
    """The settings to resume with: those of the checkpoint, changed by what the command line gives.

    Args:
        cfg: as composed, with ``resume`` a directory.
        given: settings of the command line, ``key=value``.

    Raises:
        CheckpointError: the directory has no configuration, or a damaged one.
    """
    text = _settings_text(Path(cfg.resume))
    keys = [dotted(word) for word in given]
    if "experiment" in keys:
        return cfg
    saved = from_yaml(text, Path(cfg.resume) / "config.yaml")
    keys = [dotted(word) for word in given if not _is_same_choice(saved, word)]
    for key in dict.fromkeys(["run", "resume", "resume_allow_grow", *keys]):
        OmegaConf.update(saved, key, OmegaConf.select(cfg, key), merge=False)
    take_settings(saved, keys, Path(cfg.resume))
    return saved


def dotted(word: str) -> str:
    """The dotted name of the setting that a word of the command line gives."""
    return word.partition("=")[0].lstrip("+~").replace("/", ".")


def _is_same_choice(saved: Any, word: str) -> bool:
    """The choice of a group that the checkpoint has, too: its settings stay."""
    node = OmegaConf.select(saved, dotted(word))
    return bool(OmegaConf.is_dict(node) and node.get("name") == word.partition("=")[2])


def saved_choices(folder: Path) -> dict[str, str]:
    """The choices of groups whose settings depend on the choice: group -> choice.

    Args:
        folder: a checkpoint or a run directory.
    """
    saved = from_yaml(_settings_text(folder), folder / "config.yaml")
    groups = ("data", "model", "optimizer/table", "optimizer/dense")
    return {group: str(OmegaConf.select(saved, group.replace("/", ".")).name) for group in groups}


def _settings_text(folder: Path) -> str:
    """The configuration of a checkpoint, or of the newest one of a run that has it whole."""
    if (folder / MANIFEST).is_file():
        try:
            return checkpoint.read_text(folder, "config.yaml")
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_offer(older_whole(folder))}") from None
    for one in reversed(checkpoints_in(folder / "checkpoints")):
        # What is damaged is said when the checkpoint is chosen.
        with suppress(CheckpointError):
            return checkpoint.read_text(one, "config.yaml")
    check_folder(folder)
    raise CheckpointError(f"{folder}: has no checkpoint")


def find_source(cfg: Any, groups: Groups) -> Source | None:
    """The checkpoint that `cfg.resume` means, checked; None where `auto` finds none. Collective.

    Raises:
        CheckpointError: what was named is damaged (the newest whole one before it is offered) or no point of a trajectory.
    """
    if not cfg.resume:
        return None
    if cfg.resume == "auto" and not cfg.run.dir:
        raise ConfigError("resume=auto goes on in a run directory: give run.dir=DIR, or resume=DIR")
    named = Path(cfg.run.dir if cfg.resume == "auto" else cfg.resume)
    if (named / MANIFEST).is_file():
        return _named(named, groups)
    listed = ""
    if groups.rank == 0:
        finish_publishing(named / "checkpoints")
        listed = "\n".join(str(path) for path in checkpoints_in(named / "checkpoints"))
    for text in reversed(groups.broadcast_text(listed).splitlines()):
        source = _try(Path(text), groups)
        if source is not None:
            return source
    if cfg.resume != "auto":
        check_folder(named)
    return None


def _named(folder: Path, groups: Groups) -> Source:
    """A checkpoint that the user has named."""
    problems = checkpoint.damage(folder, groups)
    if problems:
        older = groups.broadcast_text(older_whole(folder) if groups.rank == 0 else "")
        raise CheckpointError(problems[0] + _offer(older))
    source = _read(folder)
    if not _goes_on(source.progress):
        raise CheckpointError(
            f"{folder}: holds the best weights of a run that went on after them: good for scoring, no place to go on from; "
            f"give the run directory: resume={source.run}"
        )
    return source


def _offer(older: str) -> str:
    return f"; the newest whole one before it: resume={older}" if older else "; there is no whole one before it"


def _try(folder: Path, groups: Groups) -> Source | None:
    """A checkpoint that was found; None with a warning where it cannot be used."""
    problems = checkpoint.damage(folder, groups)
    if problems:
        if groups.rank == 0:
            logger.warning("WARNING: %s; trying the one before it", problems[0])
        return None
    source = _read(folder)
    return source if _goes_on(source.progress) else None


def _goes_on(progress: Progress) -> bool:
    """Whether a run can go on from there: to train on, or to make the test that a signal cut short."""
    return progress.resumable or progress.left == "test"


def _read(folder: Path) -> Source:
    saved = checkpoint.read_value(folder, "progress.json")
    cfg = from_yaml(checkpoint.read_text(folder, "config.yaml"), folder / "config.yaml")
    return Source(folder, Progress.from_json(saved["progress"]), saved["step"].integer(), cfg)


def place_run(cfg: Any, source: Source | None) -> int | None:
    """Says where the run goes on: fills in `run.dir`, and gives the step to go on from inside an existing directory.

    Raises:
        ConfigError: the run has newer checkpoints than the one that was named; they would be mixed with those to come.
    """
    if source is None:
        return 0 if cfg.resume == "auto" else None
    if not cfg.run.dir and source.folder.parent.name == "checkpoints":
        cfg.run.dir = str(source.run)
    if Path(cfg.run.dir).resolve() != source.run.resolve():
        return None
    named = Path(cfg.resume).resolve() == source.folder.resolve()
    newer = [path for path in checkpoints_in(source.folder.parent) if _read_step(path) > source.step] if named else []
    if newer:
        raise ConfigError(
            f"resume={source.folder}: the run has newer checkpoints ({newer[-1].name}); resume={source.run} goes on from the "
            f"newest, run.dir=NEW begins a run of its own from this one"
        )
    return source.step


def _read_step(folder: Path) -> int:
    """Step of a checkpoint; -1 for one that is damaged, or holds the best weights at the end of a run."""
    try:
        saved = checkpoint.read_value(folder, "progress.json")
        goes_on = _goes_on(Progress.from_json(saved["progress"]))
        return saved["step"].integer() if goes_on and not any(find_damage(folder)) else -1
    except (CheckpointError, OSError):
        return -1


def older_whole(folder: Path) -> str:
    """The newest whole checkpoint beside `folder` and before it; empty if there is none."""
    listed = checkpoints_in(folder.parent)
    before = listed[: listed.index(folder)] if folder in listed else listed
    return str(next(whole_ones(before), ""))


def changed_settings(source: Source, cfg: Any) -> list[str]:
    """Settings that decide what is trained and differ from those of the checkpoint, as ``key: old -> new``."""
    found = []
    kept = ["batch_size"] if rows_per_step(source, cfg) is not None else []
    for key in (key for key in (*_DECIDE, *_DECIDE_ROWS) if key not in kept):
        old, new = (OmegaConf.select(OmegaConf.create(one), key) for one in (source.cfg, cfg))
        found += [f"{name}: {a} -> {b}" for name, a, b in _different(key, old, new)]
    return found


def _different(key: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    if OmegaConf.is_dict(old) and OmegaConf.is_dict(new):
        names = dict.fromkeys([*old, *new])
        return [one for name in names for one in _different(f"{key}.{name}", old.get(name), new.get(name))]
    return [] if old == new else [(key, old, new)]


def rows_per_step(source: Source | None, cfg: Any) -> int | None:
    """Global rows of a step that the run goes on with; None where `batch_size` decides."""
    if source is None or cfg.batch_size not in (source.cfg.batch_size, source.progress.batch_size):
        return None
    return source.progress.global_batch


def as_trained(cfg: Any, source: Source | None, replicas: int) -> Any:
    """The settings with the `batch_size` that a replica has in this mesh; the largest where replicas differ."""
    rows = rows_per_step(source, cfg)
    return cfg if rows is None else OmegaConf.merge(cfg, {"batch_size": -(-rows // replicas)})


def check_data(source: Source, dataset: Dataset, may_grow: bool) -> None:
    """Refuses data that the checkpoint's place cannot be found in.

    Raises:
        CheckpointError: other columns, table sizes or rows.
    """
    check_schema(read_schema(source.folder), dataset.schema, may_grow)
    before, now = source.progress.train_rows, dataset.num_rows("train")
    if before != now and source.progress.row:
        raise CheckpointError(
            f"{source.folder}: was written at row {source.progress.row} of an epoch of {before} rows; these data have {now}, "
            f"in another order; resume with the same data, or from the end of an epoch (checkpoint.every_epoch=true)"
        )


def restore(trainer: Trainer, sums: Mapping[str, torch.Tensor], source: Source, groups: Groups) -> None:
    """Puts everything of a checkpoint in place; collective.

    Args:
        sums: tensors of `run_tensors`; each rank gets its own back, or, among another number of ranks, rank 0 gets all.

    Raises:
        CheckpointError: damaged, or of another model or optimizer.
    """
    index = read_index(source.folder)
    _check_optimizers(source, trainer, index)
    tables = trainer.tables.entries()
    state = {name: _fitted(value, index.get(name)) for name, value in {**weights(trainer), **tables}.items()}
    dense = _dense_optimizer(trainer, index)
    run, shared = _run_state(sums, index, groups)
    optimizer = {name: tensor for name, (_, _, tensor) in dense.items()}
    checkpoint.load(source.folder, {**state, **optimizer, **run, **shared}, groups)
    for _, (place, key, tensor) in dense.items():
        place[key] = tensor
    for name, whole in shared.items():
        sums[name].copy_(whole.sum(0))
    seed_generators(int(source.cfg.seed), groups.rank, source.step)
    if RANDOM in run:
        torch.set_rng_state(run[RANDOM].pieces[0].tensor[0])
    if HOST_RANDOM in run:
        set_host_state(run[HOST_RANDOM].pieces[0].tensor[0])
    trainer.step = source.step


def _fitted(value: torch.Tensor | Entry, record: Any) -> torch.Tensor | Entry:
    """The part of a table that a checkpoint with fewer rows has; the rest keeps its start."""
    if not isinstance(value, Entry) or record is None or record["shape"][1:] != list(value.shape[1:]):
        return value
    rows = record["shape"][0]
    if rows >= value.shape[0]:
        return value
    kept = [p for p in value.pieces if p.offsets[0] < rows]
    pieces = tuple(replace(p, tensor=p.tensor[: rows - p.offsets[0]]) for p in kept)
    return replace(value, shape=(rows, *value.shape[1:]), pieces=pieces)


def _check_optimizers(source: Source, trainer: Trainer, index: dict[str, Any]) -> None:
    """Another rule has other state: going on would begin it anew."""
    tables = {name.rpartition(".")[2] for name in trainer.tables.entries()}
    saved = {name.rpartition(".")[2] for name in index if name.startswith("tables.")}
    if tables != saved:
        rules = ", ".join(sorted(saved - {"weight"})) or "none"
        raise CheckpointError(
            f"{source.folder}: was trained with optimizer/table={source.cfg.optimizer.table.name} (state of a row: {rules}); "
            f"resume with the same rule"
        )
    rules_now = {type(rule).__name__.lower() for rule in trainer.dense_optimizers.values()}
    if rules_now - {source.cfg.optimizer.dense.name}:
        raise CheckpointError(
            f"{source.folder}: was trained with optimizer/dense={source.cfg.optimizer.dense.name}, not "
            f"{', '.join(sorted(rules_now))}; resume with the same rule"
        )


def _dense_optimizer(trainer: Trainer, index: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str, torch.Tensor]]:
    """Checkpoint name -> where the tensor goes and the tensor, for the parameters of this rank."""
    by_name = {name: parameter for name, parameter in trainer.model.named_parameters() if not parameter.is_meta}
    owner = {
        p: rule for rule in trainer.dense_optimizers.values() for group in rule.param_groups for p in group["params"]
    }
    found = {}
    for name, record in index.items():
        parameter = by_name.get(name.removeprefix(OPTIMIZER).rpartition(".")[0]) if name.startswith(OPTIMIZER) else None
        if parameter is not None:
            tensor = torch.empty(record["shape"], dtype=DTYPES[record["dtype"]], device=parameter.device)
            found[name] = (owner[parameter].state[parameter], name.rpartition(".")[2], tensor)
    return found


def _run_state(
    sums: Mapping[str, torch.Tensor], index: dict[str, Any], groups: Groups
) -> tuple[dict[str, Entry], dict[str, torch.Tensor]]:
    """Slices where there are as many ranks as before, and whole tensors, for rank 0 to add up, where there are not."""
    mine = {}
    for name, value in run_tensors(sums, groups).items():
        if list(value.shape) == index.get(name, {}).get("shape"):
            mine[name] = value
    others = {name: index[name] for name in sums if name not in mine and groups.rank == 0}
    return mine, {name: torch.zeros(record["shape"], dtype=DTYPES[record["dtype"]]) for name, record in others.items()}
