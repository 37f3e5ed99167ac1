"""DCN-V2 as a list of blocks, stacked or parallel (Wang et al., 2021), and with it the MLPerf DLRM-DCNv2."""

from __future__ import annotations

from recpipe.model.block import Block
from recpipe.model.check import require_at_least, require_choice, require_dense_arch, require_over_arch
from recpipe.model.config import DcnV2Config
from recpipe.model.cross import cross_blocks
from recpipe.model.join import JoinBlock, padded_width
from recpipe.model.layers import LogitBlock, hidden_blocks
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
    dense = _dense_blocks(cfg, schema)
    join = JoinBlock("join", ([b.outputs[0] for b in dense] or ["dense_BD"])[-1])
    num_dense = cfg.dense_arch_layer_sizes[-1] if dense else schema.num_dense
    width = padded_width(num_dense + len(schema.features) * cfg.embedding_dim)
    cross = cross_blocks("x0_BK", width, cfg.dcn_num_layers, cfg.dcn_low_rank_dim)
    widths = list(cfg.over_arch_layer_sizes[:-1])
    source = cross[-1].outputs[0] if cfg.structure == "stacked" else "x0_BK"
    over = hidden_blocks("over", source, width, widths, cfg.dropout, cfg.batch_norm)
    deep = (over[-1].outputs[0], widths[-1]) if over else (source, width)
    if cfg.structure == "stacked":
        return [*dense, join, *cross, *over, LogitBlock("logits", (deep[0],), deep[1])]
    return [*dense, join, *cross, *over, LogitBlock("logits", (cross[-1].outputs[0], deep[0]), width + deep[1])]


def _dense_blocks(cfg: DcnV2Config, schema: Schema) -> list[Block]:
    if not cfg.dense_arch_layer_sizes:
        return []
    require_dense_arch(cfg.dense_arch_layer_sizes, cfg.embedding_dim)
    return hidden_blocks("dense", "dense_BD", schema.num_dense, list(cfg.dense_arch_layer_sizes), 0.0, cfg.batch_norm)
