"""Wrong settings in one short message: what is wrong, and the nearest names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from recpipe.cli.arguments import quoted
from recpipe.cli.conf import groups, options
from recpipe.cli.schemas import records
from recpipe.errors import ConfigError, nearest


def parse(words: Sequence[str], multirun: bool) -> list[Override]:
    """The settings as Hydra reads them. Raises ConfigError with the right quoting where it cannot."""
    parser = OverridesParser.create()
    found = []
    for word in words:
        key, _, value = word.partition("=")
        try:
            override = parser.parse_override(word)
        except HydraException:
            raise ConfigError(
                f"{word}: cannot be read; if the value is a text, quote it: {quoted(key, value)}"
            ) from None
        if override.is_sweep_override() and not multirun and not override.is_hydra_override():
            raise ConfigError(
                f"{word}: several values need --multirun; a list is {shell_list(key, value)}, a text {quoted(key, value)}"
            )
        found.append(override)
    return found


def shell_list(key: str, value: str) -> str:
    """A setting with a list value, quoted for the shell."""
    return f"'{key}=[{value}]'"


def check_choices(overrides: Sequence[Override], module: ModuleType, folders: Sequence[Path]) -> None:
    """Raises ConfigError for a group choice that has no file, or a group that is removed.

    Args:
        folders: the package's YAML files, then the user's own.
    """
    chosen_from = groups(folders[0], module.CONFIG)
    for override in overrides:
        group = override.key_or_group
        if group not in chosen_from:
            continue
        known = [option for folder in folders for option in options(folder, group)]
        if override.is_delete():
            raise ConfigError(f"~{group}: a group cannot be removed; choose {group}={'|'.join(known)}")
        for choice in _choices(override):
            if choice is not None and choice not in known:
                raise ConfigError(f"{group}={choice}: there is no such {group}; {nearest(choice, known)}")


def _choices(override: Override) -> list[Any]:
    value = override._value
    if isinstance(value, ChoiceSweep):
        return [str(item) for item in value.list]
    if isinstance(value, list):
        raise ConfigError(f"{override.input_line}: choose one")
    if isinstance(value, str | int | float | type(None)):
        return [value if value is None else str(value)]
    # Globs and ranges find what there is; for the rest Hydra speaks.
    return []


def explain(error: Exception, overrides: Sequence[Override], module: ModuleType, folder: Path) -> ConfigError:
    """What a Hydra or OmegaConf error means for the user."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)
    missing = re.match(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if missing:
        return ConfigError(unknown_key(missing[1], overrides, module, folder))
    merging = re.match(r"Error merging override (.*)", text, re.DOTALL)
    if merging and isinstance(cause, ValidationError):
        return ConfigError(f"{merging[1]}: {_wrong_type(cause)}")
    composing = re.match(r"In '([^']+)': \w+ raised while composing config:\n(.*)", text, re.DOTALL)
    if composing:
        return ConfigError(f"{composing[1]}.yaml: {_in_file(composing[2], overrides, module, folder)}")
    there = re.search(r"An item is already at '([^']+)'", text)
    if there:
        return ConfigError(f"+{there[1]}: this setting exists; leave the + out")
    key = getattr(cause, "full_key", None)
    reason = _wrong_type(cause)
    where = re.match(r"(?:In )?'([^']+)'", text) if isinstance(error, HydraException) else None
    place = f"conf/{where[1]}.yaml: " if where and (folder / f"{where[1]}.yaml").is_file() else ""
    return ConfigError(f"{place}{key}: {reason}" if key else f"{place}{reason}")


def _in_file(text: str, overrides: Sequence[Override], module: ModuleType, folder: Path) -> str:
    """The reason of an error in a file, from OmegaConf's text with its inner names."""
    key = re.search(r"full_key: (\S+)", text)
    if key and re.match(r"Key '.*' (is )?not in ", text):
        return unknown_key(key[1], overrides, module, folder)
    reason = _wrong_type(ValueError(text))
    return f"{key[1]}: {reason}" if key else reason


def _wrong_type(error: BaseException) -> str:
    """The reason without OmegaConf's inner names."""
    line = str(error).split("\n")[0]
    for pattern, plain in (
        (r"Value '(.*)' of type '\w+' could not be converted to Integer", r"'\1' is not an integer"),
        (r"Value '(.*)' of type '\w+' could not be converted to Float", r"'\1' is not a number"),
        (r"Value '(.*)' is not a valid bool.*", r"'\1' is neither true nor false"),
        (r"Value '(.*)' \(\w+\) is incompatible with type hint 'int'", r"'\1' is not an integer"),
        (r"field '(.*)' is not Optional", r"null is not allowed"),
        (r"KeyError raised while resolving interpolation: \"(.*)\"", r"\1"),
        (r"Cannot assign \w+ to Dict.*", r"has to be a mapping, as '{name: value}'"),
        (r".* is not a subclass of \w+.*", r"has settings of its own below it; set these"),
        (r"Invalid value assigned: \w+ is not a ListConfig.*", r"has to be a list, as '[a,b]'"),
    ):
        if re.fullmatch(pattern, line):
            return re.sub(pattern, plain, line)
    return line


def unknown_key(key: str, overrides: Sequence[Override], module: ModuleType, folder: Path) -> str:
    """Message for a setting that does not exist: where it exists instead, or the nearest names."""
    chosen = _chosen(overrides, module, folder)
    known = known_keys(module, chosen)
    head, _, rest = key.partition(".")
    if head in chosen and head in records():
        others = [name for name, record in records()[head].items() if rest in _flat(OmegaConf.structured(record))]
        if others:
            return (
                f"{key}: not a setting of {head}={chosen[head]}; {', '.join(f'{head}={one}' for one in others)} have it"
            )
    inner = [group for group in chosen if group.startswith(f"{key}/")]
    if inner:
        return f"{key}: not a group by itself; choose {' or '.join(f'{group}=...' for group in inner)}"
    below = [name for name in known if name.startswith(f"{key}.")]
    if below:
        return f"{key}: not a group of this command; it has {', '.join(below)}"
    leaf = key.rsplit(".", 1)[-1]
    moved = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    if moved:
        return f"{key}: no such setting; did you mean {' or '.join(moved[:3])}?"
    advice = nearest(key, dict.fromkeys([*known, *chosen]))
    if not advice.startswith("did you mean"):
        advice = "--help lists all"
    return f"{key}: no such setting; {advice}"


def known_keys(module: ModuleType, chosen: dict[str, str | None]) -> list[str]:
    """Every setting of a command, with those of the chosen data and model."""
    found = list(_flat(OmegaConf.structured(module.SCHEMA)))
    for group, by_name in records().items():
        record = by_name.get(chosen.get(group) or "")
        if record is not None:
            found += [f"{group}.{key}" for key in _flat(OmegaConf.structured(record))]
    return found


def _chosen(overrides: Sequence[Override], module: ModuleType, folder: Path) -> dict[str, str | None]:
    chosen = groups(folder, module.CONFIG)
    for override in overrides:
        if override.key_or_group in chosen and isinstance(override._value, str):
            chosen[override.key_or_group] = override._value
    return chosen


def _flat(node: DictConfig, prefix: str = "") -> list[str]:
    """Dotted names of all settings, inner nodes too."""
    names = []
    for key in map(str, node):
        names.append(f"{prefix}{key}")
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            names += _flat(child, f"{prefix}{key}.")
    return names


def check_composed(cfg: DictConfig, overrides: Sequence[Override], module: ModuleType, folder: Path) -> None:
    """Raises ConfigError for what Hydra lets pass: settings added with + or removed with ~, and required ones not given."""
    for key, there in _strays(cfg):
        if there:
            raise ConfigError(unknown_key(key, overrides, module, folder))
        raise ConfigError(f"~{key}: this setting cannot be removed")
    required = sorted(OmegaConf.missing_keys(cfg))
    if required:
        raise ConfigError(f"{', '.join(required)} must be given, as {required[0]}=...")


def _strays(node: DictConfig, prefix: str = "") -> list[tuple[str, bool]]:
    """(key, whether it is there) of keys that are there and should not be, or the reverse."""
    found = []
    kind = OmegaConf.get_type(node)
    if is_dataclass(kind):
        expected = set(kind.__dataclass_fields__)
        found += [(f"{prefix}{key}", key in node) for key in sorted(expected ^ set(map(str, node)))]
    for key in map(str, node):
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            found += _strays(child, f"{prefix}{key}.")
    return found
