"""Names of a data set's categorical features, as far as its settings alone tell them. Nothing is prepared or downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recpipe.untrusted import Source

NUM_CRITEO_INTEGERS, NUM_CRITEO_FEATURES = 13, 26


def feature_names(config: Any) -> tuple[str, ...] | None:
    """Names in the order of the schema; None where only files tell them.

    Args:
        config: one of `recpipe.data.config.SCHEMAS`.
    """
    if config.name == "synthetic":
        return tuple(f"cat_{i}" for i in range(config.num_features))
    if config.name == "criteo":
        buckets = tuple(f"int_{i}_bucket" for i in range(NUM_CRITEO_INTEGERS)) if config.dense_ids else ()
        return tuple(f"cat_{i}" for i in range(NUM_CRITEO_FEATURES)) + buckets
    if config.name == "table":
        return tuple(config.categorical)
    manifest = Path(config.path) / "manifest.json"
    if not manifest.is_file():
        return None
    features = Source(manifest, large=True, non_finite=True).json()["features"]
    return tuple(feature["name"].text() for feature in features.items())
