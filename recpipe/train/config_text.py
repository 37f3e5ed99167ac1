"""A composed configuration as YAML and back; the form that run directories and checkpoints keep."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from recpipe.train.config import TrainConfig


def to_yaml(cfg: Any) -> str:
    """The configuration with every value resolved."""
    return OmegaConf.to_yaml(OmegaConf.create(cfg), resolve=True)


def from_yaml(text: str) -> Any:
    """A configuration that `to_yaml` wrote; settings added since get their defaults."""
    return OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.create(text))


def as_record(record: type, cfg: Any) -> Any:
    """A group of a configuration as the dataclass that packages without Hydra take."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(record), cfg))
