"""What a checkpoint may decide where it is resumed: a list, since it may come from a stranger.

It decides the model, its optimizers, the rows of a step, the mesh, the schedule, and the local files of its rows. The number of
its processes is bounded by this machine. Where files are written, and any place beyond this machine, is for the command line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recpipe.data.config import SCHEMAS as DATA
from recpipe.data.paths import is_remote
from recpipe.errors import CheckpointError
from recpipe.escapes import shown

logger = logging.getLogger(__name__)

# Where files are written: never from a checkpoint.
_NEVER = ("cache_dir", "out")
# Said in one line, since they reach beyond the model.
_SAID = ("plan", "cost.file", "data.path", "data.valid_path", "data.test_path", "launch.nproc", "launch.threads")
_MOST_PROCESSES_A_CORE, _FEW_PROCESSES = 4, 16


def take_settings(saved: Any, given: Collection[str], folder: Path) -> None:
    """Holds the settings of a run to resume against the list, and says those that reach beyond the model.

    Args:
        saved: settings of a checkpoint, changed by the command line.
        given: dotted names of the settings of the command line.
        folder: the checkpoint, for messages.

    Raises:
        CheckpointError: a place beyond this machine, or more processes than this machine can have.
    """
    take_places(saved, given, folder)
    most = max(_FEW_PROCESSES, _MOST_PROCESSES_A_CORE * (os.cpu_count() or 1))
    for name in ("nproc", "threads"):
        value = saved.launch[name]
        if value > most and not _is_given(f"launch.{name}", given):
            raise CheckpointError(
                f"{folder}: its settings have launch.{name}={value:,}, on this machine at most {most}; give launch.{name}=..."
            )
    values = {name: OmegaConf.select(saved, name) for name in _SAID if not _is_given(name, given)}
    said = [f"{name}={shown(value)}" for name, value in values.items() if value not in (None, "")]
    if said:
        logger.info("from the checkpoint: %s", ", ".join(said))


def take_places(saved: Any, given: Collection[str], folder: Path) -> None:
    """Takes local places to read from a checkpoint's settings, and no others.

    Args:
        saved: settings of a checkpoint; places to write get their defaults.
        given: dotted names of the settings that the command line gave.
        folder: the checkpoint, for messages.

    Raises:
        CheckpointError: a place beyond this machine.
    """
    if saved.data is None:
        raise CheckpointError(f"{folder}: its settings have no data")
    defaults = DATA[saved.data.name]()
    for name in _NEVER:
        if hasattr(defaults, name) and not _is_given(f"data.{name}", given):
            if saved.data[name] != getattr(defaults, name):
                logger.info(
                    "data.%s=%s of the checkpoint is not used: give it to write there", name, shown(saved.data[name])
                )
            saved.data[name] = getattr(defaults, name)
    for name, text in _texts(OmegaConf.to_container(saved), ""):
        if is_remote(text) and not _is_given(name, given):
            raise CheckpointError(
                f"{folder}: its settings have {shown(name)}={shown(text)}; a place beyond this machine is opened only when the "
                f"command line gives it"
            )


def _is_given(name: str, given: Collection[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in given)


def _texts(node: Any, name: str) -> Iterator[tuple[str, str]]:
    """Every text below a node, with the name of its setting."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _texts(value, f"{name}.{key}" if name else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, name)
    elif isinstance(node, str):
        yield name, node
