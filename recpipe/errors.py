"""Errors meant for users. Each says what happened, where, and what to change."""

from __future__ import annotations


class RecpipeError(Exception):
    """Base of every error shown to a user as one message, without a trace."""


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
