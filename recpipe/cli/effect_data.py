"""When the settings of data and model have no effect: rules. See `recpipe.cli.effects`."""

from __future__ import annotations

from typing import Any

from recpipe.cli.effect_always import ALWAYS
from recpipe.cli.effect_rule import Idle, no_rows, value_of


def _hashed(cfg: Any) -> bool:
    """The synthetic data set has `max_ids`, too, and no vocabulary."""
    return bool(value_of(cfg, "data.vocabulary") == "hash")


def _plain_dlrm(cfg: Any) -> bool:
    return bool(cfg.model.name == "dlrm" and cfg.model.interaction_type != "dcn")


def _no_dense(cfg: Any) -> bool:
    """The data have no dense columns, as far as settings tell."""
    data = value_of(cfg, "data", {})
    kind = data.get("name")
    return bool((kind == "synthetic" and data.num_dense == 0) or (kind == "table" and not data.dense))


def _parquet(cfg: Any) -> bool:
    path = str(value_of(cfg, "data.path", ""))
    return bool(cfg.data.format == "parquet" or (not cfg.data.format and path.lower().endswith((".parquet", ".pq"))))


def _not_drawn(cfg: Any) -> bool:
    """No row is drawn to be held out."""
    by_share = value_of(cfg, "data.split", "fraction") == "fraction"
    return not by_share or (no_rows(cfg, "valid") and no_rows(cfg, "test"))


def _not_drawn_after(cfg: Any) -> bool:
    """Held-out rows are all given, or chosen by time."""
    return _not_drawn(cfg) or bool(cfg.data.valid_path and cfg.data.test_path and max(_shares(cfg)) <= 0)


def _shares(cfg: Any) -> tuple[float, float]:
    return cfg.data.valid_fraction, cfg.data.test_fraction


_TEXT_ONLY = "a Parquet file has names and columns of its own"

_RULES = (
    Idle("data.shuffle_rows", lambda cfg: cfg.data.shuffle in ("none", "full"), "data.shuffle is not window or block"),
    *(
        Idle(f"data.{name}", lambda cfg: not cfg.data.multi_hot_sizes, "data.multi_hot_sizes=[]: rows stay as stored")
        for name in ("multi_hot_distribution", "multi_hot_seed")
    ),
    Idle(
        "data.mean_ids", lambda cfg: cfg.data.multi_hot_features == 0, "data.multi_hot_features=0: no feature has more"
    ),
    Idle("data.multi_hot_features", lambda cfg: cfg.data.mean_ids == 1, "data.mean_ids=1 makes every feature one-hot"),
    Idle("data.hash_size", lambda cfg: cfg.data.vocabulary != "hash", "only data.vocabulary=hash reads it"),
    Idle("data.frequency_threshold", _hashed, "data.vocabulary=hash counts nothing"),
    Idle("data.frequency_thresholds", _hashed, "data.vocabulary=hash counts nothing"),
    Idle("data.max_ids", _hashed, "data.vocabulary=hash has data.hash_size instead"),
    Idle("data.split_seed", _not_drawn_after, "no held-out row is drawn at random"),
    Idle("data.cache_dir", lambda cfg: bool(value_of(cfg, "data.out")), "data.out says where prepared rows lie"),
    Idle(
        "data.cache_dir",
        lambda cfg: cfg.data.name == "prepared" and "://" not in str(cfg.data.path),
        "a local directory is read where it is",
    ),
    *(
        Idle(f"data.{name}", _no_dense, "there are no dense columns")
        for name in ("dense_transform", "transforms", "dense_missing")
    ),
    *(Idle(f"data.{name}", _parquet, _TEXT_ONLY) for name in ("delimiter", "header", "columns")),
    Idle(
        "data.separator", lambda cfg: not cfg.data.multi_valued, "data.multi_valued=[]: no column holds several values"
    ),
    Idle("model.dense_arch_layer_sizes", _no_dense, "there are no dense columns"),
    Idle("model.dcn_num_layers", _plain_dlrm, "model.interaction_type is not dcn"),
    Idle("model.dcn_low_rank_dim", _plain_dlrm, "model.interaction_type is not dcn"),
    Idle("model.row_init_std", lambda cfg: cfg.model.row_init != "normal", "only model.row_init=normal reads it"),
)
# A choice of data is no setting of its own there: a recipe has to have one.
_READ = sorted(
    key for key in {*ALWAYS, *(rule.key for rule in _RULES)} if key.startswith("data.") and key != "data.name"
)
IDLE = (
    *_RULES,
    *(
        Idle(
            key,
            lambda cfg: bool(value_of(cfg, "workload.num_embeddings_per_feature")),
            "workload states the tables, so no rows are read",
        )
        for key in _READ
    ),
)
