"""DLRM as a list of blocks: bottom tower, dot interaction, top tower (Naumov et al., 2019)."""

from __future__ import annotations

from recpipe.model.block import Block
from recpipe.model.check import require_choice, require_over_arch
from recpipe.model.config import DcnV2Config, DlrmConfig
from recpipe.model.dcn_v2 import dcn_v2_blocks
from recpipe.model.dense_arch import dense_arch
from recpipe.model.interaction import DotInteraction
from recpipe.model.layers import over_arch
from recpipe.specs import Schema


def dlrm_blocks(cfg: DlrmConfig, schema: Schema) -> list[Block]:
    """Blocks ``dense_0 .., interaction, over_0 .., logits``.

    Raises:
        ConfigError: layer sizes do not fit, or an unknown ``interaction_type``.
    """
    require_choice("interaction_type", cfg.interaction_type, ("original", "dcn"))
    require_over_arch(cfg.over_arch_layer_sizes)
    if cfg.interaction_type == "dcn":
        return dcn_v2_blocks(_as_dcn(cfg), schema)
    dense = dense_arch(cfg.dense_arch_layer_sizes, cfg.embedding_dim, schema, cfg.batch_norm)
    dense_name = dense[-1].outputs[0] if dense else None
    interaction = DotInteraction("interaction", dense_name, len(schema.features), cfg.embedding_dim)
    source, width = interaction.outputs[0], interaction.width
    over = over_arch(source, width, cfg.over_arch_layer_sizes, cfg.dropout, cfg.batch_norm)
    return [*dense, interaction, *over]


def _as_dcn(cfg: DlrmConfig) -> DcnV2Config:
    return DcnV2Config(
        embedding_dim=cfg.embedding_dim,
        dropout=cfg.dropout,
        batch_norm=cfg.batch_norm,
        dense_arch_layer_sizes=list(cfg.dense_arch_layer_sizes),
        over_arch_layer_sizes=list(cfg.over_arch_layer_sizes),
        structure="stacked",
        dcn_num_layers=cfg.dcn_num_layers,
        dcn_low_rank_dim=cfg.dcn_low_rank_dim,
    )
