"""A composed configuration as YAML and back; the form that run directories and checkpoints keep.

A checkpoint may come from a stranger: its configuration holds values, nothing that is computed from the machine it is read
on, and every value is held against the settings' types, choices and ranges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recpipe.bounds import check_bounds
from recpipe.data.config import SCHEMAS as DATA
from recpipe.errors import CheckpointError, ConfigError, RecpipeError, nearest
from recpipe.escapes import shown
from recpipe.model.config import SCHEMAS as MODEL
from recpipe.train.check import check_choices
from recpipe.train.config import CHOICES, TrainConfig
from recpipe.untrusted import MAX_DEPTH, MAX_INTEGER, Source, shown_number

MAX_CHARACTERS = 2 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RECORDS: dict[str, dict[str, Any]] = {"data": dict(DATA), "model": dict(MODEL)}
_MADE = "(a newer version may have written it)"


def to_yaml(cfg: Any) -> str:
    """The configuration with every value resolved."""
    return OmegaConf.to_yaml(OmegaConf.create(cfg), resolve=True)


def from_yaml(text: str, path: Path = Path("config.yaml")) -> Any:
    """A configuration that `to_yaml` wrote; settings added since get their defaults.

    Args:
        path: the file it was read from, for messages.

    Raises:
        CheckpointError: it is no such configuration: YAML beyond plain values, an interpolation, an unknown setting, a value
            of another type or outside its range.
    """
    source = Source(path, CheckpointError)
    values = _plain(text, source)
    _require_values(values, "", source)
    for group in _RECORDS:
        if values.get(group) is not None:
            values[group] = checked_group(values[group], group, source)
    try:
        cfg = OmegaConf.merge(OmegaConf.structured(TrainConfig), values)
        check_choices(cfg, CHOICES)
        check_bounds(_container(cfg))
    except (OmegaConfBaseException, ConfigError, ValueError, TypeError, OverflowError) as error:
        raise _refused(error, source) from None
    return cfg


def as_record(record: type, cfg: Any) -> Any:
    """A group of a configuration as the dataclass that packages without Hydra take."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(record), cfg))


def _plain(text: str, source: Source) -> dict[str, Any]:
    """The YAML text as plain values: one document, no alias, no tag, no deep nesting, no key twice."""
    if len(text) > MAX_CHARACTERS:
        raise source.damaged(f"it has {len(text):,} characters; {MAX_CHARACTERS:,} are the most")
    try:
        _check_events(text, source)
        values = OmegaConf.to_container(OmegaConf.create(text))
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _refused(error, source) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise source.damaged("it is no list of settings")
    return dict(values)


def _check_events(text: str, source: Source) -> None:
    depth = documents = mappings = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        mappings += isinstance(event, yaml.MappingStartEvent)
        if mappings == 0 and isinstance(event, yaml.ScalarEvent | yaml.SequenceStartEvent):
            raise source.damaged("it is no list of settings")
        if depth > MAX_DEPTH or documents > 1:
            what = f"it is nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else "it has several documents"
            raise source.damaged(what)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise source.damaged(
                f"line {event.start_mark.line + 1} has an alias or a tag; a checkpoint holds plain values"
            )


def _require_values(node: Any, name: str, source: Source) -> None:
    """Refuses what would be computed when it is read: ``${oc.env:...}`` and its kind."""
    if isinstance(node, dict):
        for key, value in node.items():
            _require_values(key, name, source)
            _require_values(value, f"{name}.{key}" if name else str(key), source)
    elif isinstance(node, list):
        for value in node:
            if isinstance(value, dict | list):
                raise source.damaged(f"{shown(name)} has {'a list' if isinstance(value, list) else 'settings'} inside a list")
            _require_values(value, name, source)
    elif isinstance(node, int) and abs(node) > MAX_INTEGER:
        raise source.damaged(f"{shown(name)} is {shown_number(node)}, too large a number")
    elif isinstance(node, str) and ("${" in node or node == "???"):
        raise source.damaged(
            f"{shown(name)} is {shown(node)}; a checkpoint holds values, nothing that is filled in later"
        )


def checked_group(node: Any, group: str, source: Source) -> dict[str, Any]:
    """The settings of a group whose record depends on its `name`, with every type and range as there.

    Args:
        node: what the file has.
        group: data or model.

    Raises:
        RecpipeError: of the source's kind; a setting is unknown, of another type or outside its range.
    """
    if not isinstance(node, dict):
        raise source.damaged(f"{group} is no list of settings")
    _require_values(node, group, source)
    kind, records = node.get("name"), _RECORDS[group]
    if not isinstance(kind, str) or kind not in records:
        raise source.damaged(f"{group}.name is {shown(kind)}; {nearest(shown(kind), records)}")
    try:
        found: dict[str, Any] = _container(OmegaConf.merge(OmegaConf.structured(records[kind]), node))
        check_bounds({group: found})
    except (OmegaConfBaseException, ConfigError, ValueError, TypeError, OverflowError) as error:
        raise _refused(error, source, group) from None
    return found


def _container(cfg: Any) -> Any:
    return OmegaConf.to_container(cfg)


def _refused(error: Exception, source: Source, group: str = "") -> RecpipeError:
    """What is wrong with a configuration, in one line."""
    key = str(getattr(error, "full_key", "") or "")
    place = ".".join(part for part in (group, key) if part)
    reason = shown(next(iter(str(error).splitlines()), "") or type(error).__name__)
    if type(error).__name__ in ("ConfigKeyError", "ConfigAttributeError"):
        return source.damaged(f"it has the unknown setting {shown(place)} {_MADE}")
    return source.damaged(f"{shown(place)}: {reason}" if place else reason)
