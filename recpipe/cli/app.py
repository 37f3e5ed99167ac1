"""Runs one command through Hydra: composes its configuration, checks it, hands it to the command's ``main``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recpipe.cli.arguments import own_folder, split, to_overrides
from recpipe.cli.conf import find_conf
from recpipe.cli.effects import given_settings
from recpipe.cli.explain import check_choices, check_composed, explain, parse
from recpipe.cli.fit import check_fit
from recpipe.cli.schemas import complete, primary
from recpipe.train.logs import log_plainly


def run_command(module: ModuleType, name: str, arguments: Sequence[str]) -> int:
    """Composes and runs. Returns the largest exit code of a sweep's jobs.

    Raises:
        ConfigError: settings that do not exist or do not fit.
    """
    folder = find_conf()
    log_plainly()
    own_flags: dict[str, str] = getattr(module, "FLAGS", {})
    flags, words = split([own_flags.get(argument, argument) for argument in arguments])
    settings = to_overrides(words, module.SCHEMA)
    given = parse(settings, not {"-m", "--multirun"}.isdisjoint(flags))
    settings = [*getattr(module, "implied", lambda words: [])(settings), *settings]
    overrides = parse(settings, not {"-m", "--multirun"}.isdisjoint(flags))
    own = own_folder(flags)
    check_choices(overrides, module, [folder] if own is None else [folder, own])
    codes: list[int] = []
    failed: list[BaseException] = []

    def task(cfg: DictConfig) -> None:
        # Hydra would print an error and wrap it: it is kept, and raised when Hydra is done.
        try:
            OmegaConf.resolve(cfg)
            complete(cfg)
            check_composed(cfg, overrides, module, folder)
            check_fit(cfg, given_settings(given), name)
            codes.append(module.main(cfg))
        except Exception as error:
            failed.append(error)

    try:
        with _as_program(f"recpipe {name}", [*flags, *settings]):
            root = primary(module, name, folder)
            hydra.main(version_base="1.3", config_path=str(folder), config_name=root)(task)()
        if failed:
            raise failed[0]
    except SystemExit as leaving:
        # Hydra leaves after --help.
        if leaving.code:
            raise
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, module, folder) from None
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
