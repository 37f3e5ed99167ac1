"""From settings to a data set, the door that the trainer uses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from recpipe.data.config import SCHEMAS
from recpipe.data.dataset import Dataset
from recpipe.errors import ConfigError, nearest

logger = logging.getLogger(__name__)
Log = Callable[[str], None]


def prepare_dataset(config: Any, log: Log = logger.info) -> None:
    """Do once what reading needs: parse files into a cached directory. One process does this before the others open."""
    _check_name(config)
    if config.name in ("criteo", "table"):
        from recpipe.data.prepare.job import prepare

        prepare(config, log, say_files=True)


def open_dataset(config: Any, seed: int = 0, log: Log = logger.info) -> Dataset:
    """The data set of these settings; prepares it first where that was not done yet.

    Args:
        config: an object with the attributes of one of `recpipe.data.config.SCHEMAS`.
        seed: seed of the order of training rows.
        log: takes one line of progress.

    Raises:
        ConfigError: settings that do not fit each other.
        DataError: files that are missing, damaged or not in the format.
    """
    _check_name(config)
    if config.name == "synthetic":
        from recpipe.data.synthetic.dataset import synthetic_dataset

        return synthetic_dataset(config, seed)
    from recpipe.data.prepare.job import prepare
    from recpipe.data.prepared import prepared_dataset

    directory = config.path if config.name == "prepared" else prepare(config, log)
    return prepared_dataset(directory, config, seed)


def _check_name(config: Any) -> None:
    """Only the known kinds."""
    if config.name not in SCHEMAS:
        raise ConfigError(f"data.name={config.name} is unknown; {nearest(config.name, SCHEMAS)}")
