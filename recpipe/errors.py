"""Errors meant for users. Each says what happened, where, and what to change."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from recpipe.escapes import printable


class RecpipeError(Exception):
    """Base of every error shown to a user as one message, without a trace.

    A message may quote a stranger's file: its text has control characters escaped, its lines and tabs stay.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(RecpipeError, ValueError):
    """A setting is unknown, of the wrong type, or does not fit the others."""


class DataError(RecpipeError, ValueError):
    """A file, a row or a value is not what the configuration says."""


class PlanError(RecpipeError, ValueError):
    """Tables cannot be placed on ranks as asked."""


class ScheduleError(RecpipeError, ValueError):
    """A schedule breaks a rule; the message has the rule's number, the rank and the actions."""


class CheckpointError(RecpipeError, ValueError):
    """A checkpoint is missing, damaged, or made for another model."""


class TrainingError(RecpipeError, RuntimeError):
    """Training cannot go on: a non-finite loss, a lost rank."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """A clause for an error message: the known names most like `name`, or all when none is and they are few."""
    choices = list(known)
    close = difflib.get_close_matches(name, choices, n=limit, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(choices[:30])}{' ...' if len(choices) > 30 else ''}"
