"""The YAML files: `conf/` of a checkout, or the copy inside an installed wheel; which groups a command has."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recpipe.cli.conf_path import conf_dir
from recpipe.errors import ConfigError


def find_conf() -> Path:
    """The directory of the YAML files. Raises ConfigError if the installation lacks it."""
    folder = conf_dir()
    if folder is None:
        raise ConfigError("the conf directory is missing from this installation; see recpipe doctor")
    return folder


def groups(folder: Path, config: str) -> dict[str, str | None]:
    """Groups of a command's root file, each with its default choice (None: no choice)."""
    entries = [entry for entry in _root(folder, config).get("defaults", []) if isinstance(entry, DictConfig)]
    return {str(key).removeprefix("optional "): value for entry in entries for key, value in entry.items()}


def required(folder: Path, config: str) -> list[str]:
    """Settings that a command's root file leaves to the user, as ``key: ???``. A record's default must not fill them."""
    root = _root(folder, config)
    return [str(key) for key in root if OmegaConf.is_missing(root, key)]


def options(folder: Path, group: str) -> list[str]:
    """Choices of a group."""
    return sorted(path.stem for path in (folder / group).glob("*.yaml"))


def _root(folder: Path, config: str) -> DictConfig:
    root = OmegaConf.load(folder / f"{config}.yaml")
    assert isinstance(root, DictConfig)
    return root
