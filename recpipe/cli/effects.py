"""Settings that were given by hand but change nothing: an error, since what their user wanted does not happen.

Every setting of every command has an entry: it always counts (`effect_always`), or a rule says when it does not
(`effect_rules`, `effect_data`). `effect_commands` names what a command does not read. A test walks all settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from recpipe.cli import effect_data, effect_rules
from recpipe.cli.effect_commands import not_read
from recpipe.cli.effect_rule import Idle, covers
from recpipe.errors import ConfigError

IDLE: tuple[Idle, ...] = (*effect_rules.IDLE, *effect_data.IDLE)
# The setting that a choice of a group decides.
_CHOICE = {
    "exchange": "exchange.kind",
    "optimizer/table": "optimizer.table.name",
    "optimizer/dense": "optimizer.dense.name",
    "schedule": "schedule.name",
    "data": "data.name",
    "model": "model.name",
}


def given_settings(overrides: Sequence[Override]) -> list[str]:
    """Dotted names of the settings that were given by hand; a mapping for a group stands for what it holds."""
    return [key for one in overrides for key in _names(one)]


def settings_of(words: Sequence[str]) -> list[str]:
    """The same of words, ``key=value``."""
    return given_settings([OverridesParser.create().parse_override(word) for word in words])


def _names(override: Override) -> Iterator[str]:
    key = override.key_or_group
    value = None if override.is_sweep_override() or override.is_delete() else override.value()
    if isinstance(value, Mapping) and "." not in key:
        yield from (f"{key}.{name}" for name in value)
    else:
        yield _CHOICE.get(key, key.replace("/", "."))


def check_effects(cfg: DictConfig, given: Sequence[str], command: str) -> None:
    """Refuses a setting that was given by hand and has no effect.

    Args:
        cfg: as composed.
        given: dotted names; a recipe file may hold more than it needs.
        command: name of the command.

    Raises:
        ConfigError: the setting, and why it changes nothing.
    """
    for key in given:
        reason = idle_reason(cfg, key, command)
        if reason:
            raise ConfigError(f"{key} has no effect here: {reason}")


def idle_reason(cfg: DictConfig, key: str, command: str) -> str:
    """Why a setting changes nothing in this configuration; empty if it does something."""
    reason = not_read(cfg, key, command)
    if reason:
        return reason
    for rule in IDLE:
        if covers(rule.key, key) and _asks(cfg, key) and rule.unused(cfg):
            return rule.because if isinstance(rule.because, str) else rule.because(cfg)
    return ""


def _asks(cfg: Any, key: str) -> bool:
    """Whether the setting has a value that wants something."""
    value = OmegaConf.select(cfg, key)
    return value is not None and value not in ("", [], {})
