"""From a configuration and a schema to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from recpipe.errors import ConfigError
from recpipe.model.block import Block
from recpipe.model.boundaries import trace_row_shapes
from recpipe.model.check import require_at_least, require_choice, require_dropout, require_embedding_dim
from recpipe.model.config import SCHEMAS, ModelConfig
from recpipe.model.coupling import find_couplings
from recpipe.model.dcn_v2 import dcn_v2_blocks
from recpipe.model.deepfm import deepfm_blocks, first_order_row_dim, wide_deep_blocks
from recpipe.model.dlrm import dlrm_blocks
from recpipe.model.feature_transformer import feature_transformer_blocks
from recpipe.model.model import Model
from recpipe.model.partition import block_flops
from recpipe.model.rows import RowInit
from recpipe.model.wukong import wukong_blocks
from recpipe.specs import Schema, TableSpec

# The settings are of the class that SCHEMAS has for the same name.
BUILDERS: dict[str, Callable[[Any, Schema], list[Block]]] = {
    "dlrm": dlrm_blocks,
    "dcn_v2": dcn_v2_blocks,
    "deepfm": deepfm_blocks,
    "wide_deep": wide_deep_blocks,
    "wukong": wukong_blocks,
    "feature_transformer": feature_transformer_blocks,
}
FIRST_ORDER = ("deepfm", "wide_deep")


def build_model(
    cfg: ModelConfig,
    schema: Schema,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """Build the model that ``cfg.name`` names.

    Args:
        cfg: one of `recpipe.model.config`'s dataclasses, or any object with its attributes.
        schema: columns of the data.
        seed: weights are a function of it and of the block's index.
        dtype: of the weights.
        device: ``meta`` leaves every block without memory, for :meth:`Model.materialise` to fill a stage's own.

    Raises:
        ConfigError: a setting is unknown or does not fit the others.
    """
    require_choice("name", cfg.name, tuple(SCHEMAS))
    _check_common(cfg, schema)
    with torch.device("meta"):
        blocks = BUILDERS[cfg.name](cfg, schema)
    for block in blocks:
        block.to(dtype)
        block.use_row_dropout()
        block.eval()
    tables = _tables(cfg, schema)
    inputs = {"dense_BD": (schema.num_dense,), "rows_BFD": (len(tables), tables[0].dim)}
    shapes = trace_row_shapes(blocks, inputs, dtype)
    flops = block_flops(blocks, shapes, dtype)
    for block in blocks:
        block.train()
    couplings = find_couplings(blocks, shapes, dtype)
    model = Model(cfg.name, tables, blocks, schema.num_dense, _row_init(cfg), shapes, flops, couplings)
    if torch.device(device).type != "meta":
        model.materialise(range(len(blocks)), seed, device)
    return model


def _check_common(cfg: ModelConfig, schema: Schema) -> None:
    require_embedding_dim(cfg.embedding_dim)
    require_dropout(cfg.dropout)
    require_choice("row_init", cfg.row_init, ("uniform", "normal"))
    require_at_least("row_init_std", cfg.row_init_std, 0.0)
    if not schema.features:
        raise ConfigError(f"model={cfg.name}: the data has no categorical feature, so there is nothing to embed")


def _tables(cfg: ModelConfig, schema: Schema) -> tuple[TableSpec, ...]:
    dim = first_order_row_dim(cfg.embedding_dim) if cfg.name in FIRST_ORDER else cfg.embedding_dim
    return tuple(
        TableSpec("t_" + f.name, f.name, f.num_ids, dim, f.pooling, tuple(f.zero_rows)) for f in schema.features
    )


def _row_init(cfg: ModelConfig) -> RowInit:
    """Vectors start random; first-order weights and padding behind them start at zero."""
    return RowInit(cfg.row_init, cfg.row_init_std, cfg.embedding_dim)
