"""Checks of model settings. Each error says what is wrong, in which setting, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from recpipe.errors import ConfigError, nearest

KERNEL_MULTIPLE = 4


def require_choice(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"model.{key}={value}: unknown; {nearest(str(value), choices)}")


def require_at_least(key: str, value: float, least: float) -> None:
    """Raise ConfigError when ``value`` is below ``least``."""
    if value < least:
        raise ConfigError(f"model.{key}={value}: must be at least {least}")


def require_widths(key: str, widths: Sequence[int]) -> None:
    """Raise ConfigError for an empty list of layer sizes or a size below 1."""
    if not widths:
        raise ConfigError(f"model.{key}=[]: at least one layer size is needed")
    if min(widths) < 1:
        raise ConfigError(f"model.{key}={list(widths)}: layer sizes must be at least 1")


def require_dense_arch(widths: Sequence[int], embedding_dim: int) -> None:
    """Raise ConfigError unless the bottom tower ends in a vector as long as an embedding."""
    require_widths("dense_arch_layer_sizes", widths)
    if widths[-1] != embedding_dim:
        fixed = [*widths[:-1], embedding_dim]
        raise ConfigError(
            f"model.dense_arch_layer_sizes={list(widths)} ends in {widths[-1]}, but the model has "
            f"model.embedding_dim={embedding_dim}: make the last size equal to it, for example {fixed}, "
            f"or set model.embedding_dim={widths[-1]}"
        )


def require_over_arch(widths: Sequence[int]) -> None:
    """Raise ConfigError unless the top tower ends in one logit."""
    require_widths("over_arch_layer_sizes", widths)
    if widths[-1] != 1:
        raise ConfigError(
            f"model.over_arch_layer_sizes={list(widths)} ends in {widths[-1]}, but a model gives one logit a row: "
            f"end it in 1, for example {[*widths, 1]}"
        )


def require_embedding_dim(dim: int) -> None:
    """Raise ConfigError unless the table kernels take rows of ``dim`` floats."""
    require_at_least("embedding_dim", dim, 1)
    if dim % KERNEL_MULTIPLE:
        padded = round_up(dim)
        raise ConfigError(
            f"model.embedding_dim={dim}: table kernels take rows of a multiple of {KERNEL_MULTIPLE} floats; "
            f"use model.embedding_dim={padded}"
        )


def round_up(dim: int) -> int:
    """The next multiple that the table kernels take."""
    return -(-dim // KERNEL_MULTIPLE) * KERNEL_MULTIPLE


def require_dropout(rate: float) -> None:
    """Raise ConfigError unless 0 <= rate < 1."""
    if not 0.0 <= rate < 1.0:
        raise ConfigError(f"model.dropout={rate}: must be at least 0 and below 1")
