"""Runs one command through Hydra: composes its configuration, checks it, hands it to the command's ``main``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import hydra

from recpipe.cli.conf_path import conf_dir
from recpipe.cli.schemas import primary
from recpipe.errors import ConfigError
from recpipe.train.logs import log_plainly


def run_command(module: ModuleType, name: str, arguments: Sequence[str]) -> int:
    """Composes and runs; the largest exit code of a sweep's jobs."""
    folder = conf_dir()
    if folder is None:
        raise ConfigError("the conf directory is missing from this installation; see recpipe doctor")
    log_plainly()
    codes: list[int] = []

    def task(cfg: Any) -> None:
        codes.append(module.main(cfg))

    with _as_program(f"recpipe {name}", arguments):
        hydra.main(version_base="1.3", config_path=str(folder), config_name=primary(module, name))(task)()
    return max(codes, default=0)


@contextmanager
def _as_program(name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and prints traces itself unless told to raise."""
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [name, *arguments], "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
