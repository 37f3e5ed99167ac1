"""The commands: a name for each module of `recpipe.cli` that is one."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

COMMANDS = ("train", "eval", "score", "checkpoint", "verify", "data", "simulate", "profile", "plan", "bench", "doctor")


def load(name: str) -> ModuleType:
    """The module behind a command; the contract is in docs/architecture.md."""
    return import_module(f"recpipe.cli.{name}")


def help_line(name: str) -> str:
    """What the command is for, or why it cannot be loaded."""
    try:
        return str(load(name).HELP)
    except ImportError as error:
        return f"not available ({error}); see recpipe doctor"
