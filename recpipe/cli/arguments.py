"""What the shell hands over: flags, words without '=', and settings that the shell may have cut in pieces."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hydra._internal.utils import get_args_parser

from recpipe.errors import ConfigError, nearest

# Words that need no key, for commands whose settings have these names.
POSITIONAL = ("action", "path")
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(flags with their values, everything else). Raises ConfigError for an unknown flag."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        known, extra = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    for flag in extra:
        if flag.startswith("-"):
            shown = [option for option in parser._option_string_actions if option.startswith("--")]
            raise ConfigError(f"{flag}: no such flag; {nearest(flag, shown)}")
    words = [*known.overrides, *extra]
    flags = [argument for argument in arguments if argument not in words]
    return flags, words


def own_folder(flags: Sequence[str]) -> Path | None:
    """The user's own directory of YAML files, from --config-dir."""
    given = get_args_parser().parse_known_args(list(flags))[0].config_dir
    return Path(given) if given else None


def to_overrides(words: Sequence[str], schema: type) -> list[str]:
    """Settings as key=value; leading words without '=' become `action` and `path` where the command has these.

    Raises:
        ConfigError: a word is no setting, or the shell has cut a setting in pieces; says how to quote it.
    """
    check_pieces(words)
    known = {field.name for field in fields(schema)}
    free = [name for name in POSITIONAL if name in known]
    overrides = []
    for word in words:
        if "=" in word[1:] or word.startswith("~"):
            overrides.append(word)
        elif free and not word.startswith("="):
            overrides.append(f"{free.pop(0)}={text_value(word)}")
        else:
            raise ConfigError(
                f"{word}: not a setting. Write key=value without spaces around '='; "
                f"a value with spaces in quotes: {quoted('key', 'two words')}"
            )
    return overrides


def check_pieces(words: Sequence[str]) -> None:
    """Raises ConfigError where the shell seems to have cut one setting into several words."""
    for i, word in enumerate(words):
        key, sign, value = word.partition("=")
        if not sign:
            continue
        if unbalanced(value):
            whole = _rejoin(key, value, words[i + 1 :])
            if whole is not None:
                raise ConfigError(f"{word}: the shell has cut this setting in pieces; quote it: {shlex.quote(whole)}")
            raise ConfigError(f"{word}: brackets do not match; if they are part of a text: {quoted(key, value)}")
        same = [value, *_values_of(key, words[i + 1 :])]
        if len(same) > 1 and all(re.match(r"[^/:\\]+:", piece) for piece in same):
            whole = f"{key}={{{','.join(same)}}}"
            raise ConfigError(f"{word}: the shell has expanded braces; quote the setting: {shlex.quote(whole)}")


def unbalanced(value: str) -> bool:
    """Whether brackets outside of quotes do not match."""
    stack: list[str] = []
    quote = ""
    for mark in value:
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        elif mark in _CLOSING:
            stack.append(_CLOSING[mark])
        elif mark in _CLOSING.values() and (not stack or stack.pop() != mark):
            return True
    return bool(stack)


def _rejoin(key: str, value: str, after: Sequence[str]) -> str | None:
    """The setting before the shell cut it at spaces, or expanded its braces; None if neither explains it."""
    repeated = _values_of(key, after)
    expanded = f"{{{','.join([value, *repeated])}}}"
    if repeated and not unbalanced(expanded):
        return f"{key}={expanded}"
    joined = value
    for word in after:
        joined = f"{joined} {word}"
        if not unbalanced(joined):
            return f"{key}={joined}"
    return None


def _values_of(key: str, words: Sequence[str]) -> list[str]:
    """Values of the words at the start that set `key` again."""
    values = []
    for word in words:
        if not word.startswith(f"{key}="):
            break
        values.append(word.partition("=")[2])
    return values


def text_value(value: str) -> str:
    """`value` in Hydra's own quotes, so that none of its characters means anything."""
    escaped = re.sub(r'(\\*)"', lambda found: found[1] * 2 + r"\"", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f'"{escaped}{chr(92) * trailing}"'


def quoted(key: str, value: str) -> str:
    """A setting with a text value, quoted for Hydra and for the shell."""
    return shlex.quote(f"{key}={text_value(value)}")
