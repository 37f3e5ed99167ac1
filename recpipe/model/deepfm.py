"""DeepFM (Guo et al., 2017) and Wide & Deep (Cheng et al., 2016) as lists of blocks.

Both have first-order weights beside a deep tower; DeepFM adds the products of all pairs.
"""

from __future__ import annotations

from recpipe.model.block import Block
from recpipe.model.check import require_over_arch, round_up
from recpipe.model.config import DeepFmConfig, WideDeepConfig
from recpipe.model.first_order import FirstOrderBlock
from recpipe.model.fm import FmBlock
from recpipe.model.join import JoinBlock, padded_width
from recpipe.model.layers import over_arch
from recpipe.specs import Schema


def deepfm_blocks(cfg: DeepFmConfig, schema: Schema) -> list[Block]:
    """Blocks ``first_order, fm, join, over_0 .., logits``.

    Raises:
        ConfigError: layer sizes do not fit.
    """
    return [*_first_order(cfg, schema), FmBlock("fm"), *_deep(cfg, schema, ("first_order_B", "fm_B"))]


def wide_deep_blocks(cfg: WideDeepConfig, schema: Schema) -> list[Block]:
    """Blocks ``first_order, join, over_0 .., logits``.

    Raises:
        ConfigError: layer sizes do not fit.
    """
    return [*_first_order(cfg, schema), *_deep(cfg, schema, ("first_order_B",))]


def first_order_row_dim(embedding_dim: int) -> int:
    """Floats of a row that holds a vector and its first-order weight, padded to what the table kernels take."""
    return round_up(embedding_dim + 1)


def _first_order(cfg: DeepFmConfig | WideDeepConfig, schema: Schema) -> list[Block]:
    row_dim = first_order_row_dim(cfg.embedding_dim)
    return [FirstOrderBlock("first_order", schema.num_dense, cfg.embedding_dim, row_dim)]


def _deep(cfg: DeepFmConfig | WideDeepConfig, schema: Schema, addends: tuple[str, ...]) -> list[Block]:
    require_over_arch(cfg.over_arch_layer_sizes)
    width = padded_width(schema.num_dense + len(schema.features) * cfg.embedding_dim)
    over = over_arch("x0_BK", width, cfg.over_arch_layer_sizes, cfg.dropout, cfg.batch_norm, addends)
    return [JoinBlock("join", "dense_BD", "vectors_BFD"), *over]
