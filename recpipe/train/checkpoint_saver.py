"""When a run's checkpoints are written and which stay; writing beside training, on request.

A checkpoint that cannot be written (a full disk) is a loud warning, not the end: training goes on and older ones stay.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from recpipe.comm import Groups
from recpipe.comm.connecting import new_group
from recpipe.embedding.state import Entry
from recpipe.errors import ConfigError
from recpipe.train.checkpoint import SaveError, State, save
from recpipe.train.checkpoint_manifest import Linked, unfinished_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """What goes into a checkpoint: tensors, small texts, facts for the manifest, files of the run that are linked."""

    state: State
    texts: Mapping[str, str]
    notes: Mapping[str, Any]
    links: Mapping[str, Linked] = field(default_factory=dict)


def check_settings(cfg: Any) -> None:
    """What can be said before anything is opened.

    Args:
        cfg: `recpipe.train.config.TrainConfig`.
    """
    best, metric = cfg.checkpoint.keep_best, cfg.early_stopping.metric
    if best and cfg.early_stopping.patience and best != metric:
        raise ConfigError(f"checkpoint.keep_best={best} and early_stopping.metric={metric}: choose one metric for both")
    for name in ("every_steps", "every_minutes", "keep_latest_k"):
        value = getattr(cfg.checkpoint, name)
        if value < 0:
            raise ConfigError(f"checkpoint.{name}={value}: must not be negative")


class Saver:
    """Writes the checkpoints of a run; every rank has one and calls it at the same places.

    Args:
        settings: `recpipe.train.config.CheckpointConfig`.
        folder: the run's directory of checkpoints.
        groups: collective: makes a group of its own where it writes beside training.
    """

    def __init__(self, settings: Any, folder: Path, groups: Groups) -> None:
        self._settings, self._folder = settings, folder
        self._pool: ThreadPoolExecutor | None = None
        self._groups = groups
        if settings.async_save:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="recpipe-checkpoint")
            if groups.world > 1:
                self._groups = replace(groups, control=new_group())
        self._waiting: tuple[Future[None], Path] | None = None
        self._last = time.monotonic()
        self.seconds = 0.0

    @property
    def is_late(self) -> bool:
        """The last checkpoint is `every_minutes` old. Ranks may differ: they have to agree."""
        minutes = self._settings.every_minutes
        return bool(minutes) and time.monotonic() - self._last >= 60 * minutes

    def is_due(self, step: int) -> bool:
        """A checkpoint is to be written after this step."""
        every = self._settings.every_steps
        return bool(every) and step % every == 0

    def save(self, name: str, content: Content) -> bool:
        """Writes a checkpoint and gives whether it is there; one that is written beside training counts as there.

        Collective. Waits for the one before, where that is still being written.
        """
        start = time.monotonic()
        self.finish()
        path, self._last = self._folder / name, start
        if self._pool is None:
            done = self._collect(path, lambda: self._write(path, content))
        else:
            copied = replace(content, state=_copy(content.state))
            self._waiting, done = (self._pool.submit(self._write, path, copied), path), True
        self.seconds += time.monotonic() - start
        return done

    def finish(self) -> bool:
        """Waits for what is being written; gives whether it came to its end."""
        if self._waiting is None:
            return True
        (future, path), self._waiting = self._waiting, None
        return self._collect(path, future.result)

    def prune(self, best_step: int | None) -> None:
        """Removes what need not stay: all but the latest k steps, and all but the best.

        Args:
            best_step: the one that stays, named ``best-STEP``; None: all of them do.
        """
        if self._groups.rank:
            return
        steps = sorted(self._folder.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        keep = self._settings.keep_latest_k
        old = steps[:-keep] if keep else []
        if best_step is not None:
            kept = self._folder / f"best-{best_step}"
            old += [path for path in self._folder.glob("best-*") if path != kept and kept.is_dir()]
        for path in old:
            shutil.rmtree(path, ignore_errors=True)

    def _write(self, path: Path, content: Content) -> None:
        save(path, content.state, content.texts, self._groups, content.notes, content.links)

    def _collect(self, path: Path, result: Any) -> bool:
        try:
            result()
        except SaveError as error:
            if self._groups.rank == 0:
                shutil.rmtree(unfinished_name(path), ignore_errors=True)
                kept = sorted(one.name for one in self._folder.glob("*-*")) or ["none"]
                logger.warning("WARNING: %s; training goes on. Checkpoints that are whole: %s", error, ", ".join(kept))
            return False
        return True


def _copy(state: State) -> dict[str, torch.Tensor | Entry]:
    """The parts that this rank writes, as they are now."""
    copied: dict[str, torch.Tensor | Entry] = {}
    for name, value in state.items():
        if isinstance(value, Entry):
            pieces = tuple(replace(piece, tensor=piece.tensor.clone()) for piece in value.pieces if piece.saved)
            copied[name] = replace(value, pieces=pieces)
        else:
            copied[name] = value.detach().clone()
    return copied
