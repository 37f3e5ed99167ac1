"""DCN-V2 as a list of blocks, stacked or parallel (Wang et al., 2021), and with it the MLPerf DLRM-DCNv2."""

from __future__ import annotations

from recpipe.model.block import Block
from recpipe.model.check import require_at_least, require_choice, require_over_arch
from recpipe.model.config import DcnV2Config
from recpipe.model.cross import cross_blocks
from recpipe.model.dense_arch import dense_arch
from recpipe.model.join import JoinBlock, padded_width
from recpipe.model.layers import LogitBlock, hidden_blocks, over_arch
from recpipe.specs import Schema


def dcn_v2_blocks(cfg: DcnV2Config, schema: Schema) -> list[Block]:
    """Blocks ``[dense_0 ..], join, cross_0 .., over_0 .., logits``; every cross layer reads ``x0_BK``.

    Raises:
        ConfigError: layer sizes or ranks do not fit, or an unknown ``structure``.
    """
    require_choice("structure", cfg.structure, ("stacked", "parallel"))
    require_over_arch(cfg.over_arch_layer_sizes)
    require_at_least("dcn_num_layers", cfg.dcn_num_layers, 1)
    require_at_least("dcn_low_rank_dim", cfg.dcn_low_rank_dim, 0)
    sizes = cfg.dense_arch_layer_sizes
    dense = dense_arch(sizes, cfg.embedding_dim, schema, cfg.batch_norm) if sizes else []
    join = JoinBlock("join", dense[-1].outputs[0] if dense else "dense_BD")
    num_dense = dense[-1].width if dense else schema.num_dense
    width = padded_width(num_dense + len(schema.features) * cfg.embedding_dim)
    cross = cross_blocks("x0_BK", width, cfg.dcn_num_layers, cfg.dcn_low_rank_dim)
    deep = _stacked(cfg, cross[-1], width) if cfg.structure == "stacked" else _parallel(cfg, cross[-1], width)
    return [*dense, join, *cross, *deep]


def _stacked(cfg: DcnV2Config, last_cross: Block, width: int) -> list[Block]:
    return over_arch(last_cross.outputs[0], width, cfg.over_arch_layer_sizes, cfg.dropout, cfg.batch_norm)


def _parallel(cfg: DcnV2Config, last_cross: Block, width: int) -> list[Block]:
    """A deep tower from ``x0_BK``; the last layer reads it beside the cross layers' output."""
    widths = cfg.over_arch_layer_sizes[:-1]
    over = hidden_blocks("over", "x0_BK", width, widths, cfg.dropout, cfg.batch_norm)
    deep_name, deep_width = (over[-1].outputs[0], over[-1].width) if over else ("x0_BK", width)
    return [*over, LogitBlock("logits", (last_cross.outputs[0], deep_name), width + deep_width)]
