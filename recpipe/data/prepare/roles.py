"""The words in a name that say which rows a file holds, and the columns that names of folders hold."""

from __future__ import annotations

import re
from urllib.parse import unquote

from recpipe.data.paths import AnyPath
from recpipe.errors import ConfigError
from recpipe.escapes import shown

MAIN, VALID, TEST = "main", "valid", "test"
SETTINGS = {MAIN: "data.path", VALID: "data.valid_path", TEST: "data.test_path"}
_WORDS = {
    MAIN: ("train", "training", "trainset"),
    VALID: (
        "valid",
        "validation",
        "validate",
        "validset",
        "val",
        "valset",
        "dev",
        "devel",
        "devset",
        "eval",
        "evaluation",
        "evalset",
    ),
    TEST: ("test", "tests", "testing", "testset", "holdout", "heldout"),
}
_ROLES = {word: role for role, words in _WORDS.items() for word in words}
_DEFAULT = "__HIVE_DEFAULT_PARTITION__"


def role_said(below: tuple[str, ...]) -> str | None:
    """The role that the names of a file and of its folders say; None where they say nothing.

    Args:
        below: the names below the place that a setting names; those of partitions (`key=value`) count by their whole value.

    Raises:
        ConfigError: they say more than one.
    """
    said = {role for name in below for role in roles_in(name)}
    if len(said) > 1:
        raise ConfigError(
            f"{shown('/'.join(below))} says {' and '.join(sorted(said))} rows by its name; "
            f"name the files: {', '.join(f'{setting}=FILE' for setting in SETTINGS.values())}"
        )
    return said.pop() if said else None


def words_of(name: str) -> list[str]:
    """The words of a name, in small letters: parted by signs, digits and capitals; hold-out is one word."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]
    pairs = [first + second for first, second in zip(words, words[1:], strict=False)]
    return words + [pair for pair in pairs if pair in ("holdout", "heldout")]


def roles_in(name: str) -> set[str]:
    """The roles that the words of one name say."""
    key, sign, value = name.partition("=")
    words = [value.lower()] if sign and key else words_of(name)
    return {_ROLES[word] for word in words if word in _ROLES}


def partition_keys(path: AnyPath) -> dict[str, str | None]:
    """Columns in the names of the folders of a file, as `dt=2024-01-01`; a missing value is None."""
    parted = [part.partition("=") for part in path.parts[:-1]]
    return {
        unquote(key): None if value in ("", _DEFAULT) else unquote(value) for key, sign, value in parted if sign and key
    }
