"""How the ids of a row become one vector: a setting by feature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recpipe.errors import ConfigError, nearest
from recpipe.specs import POOLINGS, Schema


def with_pooling(schema: Schema, config: Any) -> Schema:
    """The schema with the poolings of the settings.

    Args:
        schema: of the data.
        config: `DataConfig`.

    Raises:
        ConfigError: an unknown feature or pooling, or a feature of one id a row, where pooling changes nothing.
    """
    by_name = {feature.name: feature for feature in schema.features}
    for name, pooling in config.pooling.items():
        if pooling not in POOLINGS:
            raise ConfigError(f"data.pooling.{name}={pooling} is unknown; {nearest(pooling, POOLINGS)}")
        if name not in by_name:
            raise ConfigError(f"data.pooling names {name}, which is no feature of the data; {nearest(name, by_name)}")
        if by_name[name].mean_ids == 1.0 and name not in getattr(config, "multi_valued", ()):
            raise ConfigError(f"data.pooling.{name}={pooling} has no effect: {name} has one id a row")
    if not config.pooling:
        return schema
    features = (
        replace(feature, pooling=config.pooling.get(feature.name, feature.pooling)) for feature in schema.features
    )
    return Schema(schema.num_dense, tuple(features))
