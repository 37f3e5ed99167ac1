"""DLRM as a list of blocks: bottom tower, dot interaction, top tower (Naumov et al., 2019)."""

from __future__ import annotations

from recpipe.model.block import Block
from recpipe.model.check import require_choice, require_dense_arch, require_over_arch
from recpipe.model.config import DcnV2Config, DlrmConfig
from recpipe.model.dcn_v2 import dcn_v2_blocks
from recpipe.model.interaction import DotInteraction
from recpipe.model.layers import LogitBlock, hidden_blocks
from recpipe.specs import Schema


def dlrm_blocks(cfg: DlrmConfig, schema: Schema) -> list[Block]:
    """Blocks ``dense_0 .. dense_k, interaction, over_0 .. over_k, logits``.

    Raises:
        ConfigError: layer sizes do not fit, or an unknown ``interaction_type``.
    """
    require_choice("interaction_type", cfg.interaction_type, ("original", "dcn"))
    require_dense_arch(cfg.dense_arch_layer_sizes, cfg.embedding_dim)
    require_over_arch(cfg.over_arch_layer_sizes)
    if cfg.interaction_type == "dcn":
        return dcn_v2_blocks(_as_dcn(cfg), schema)
    # The bottom tower's output is one of the vectors of the interaction: dropping its units would drop products.
    dense = hidden_blocks("dense", "dense_BD", schema.num_dense, list(cfg.dense_arch_layer_sizes), 0.0, cfg.batch_norm)
    interaction = DotInteraction("interaction", dense[-1].outputs[0], len(schema.features), cfg.embedding_dim)
    widths = list(cfg.over_arch_layer_sizes[:-1])
    over = hidden_blocks("over", interaction.outputs[0], interaction.num_outputs, widths, cfg.dropout, cfg.batch_norm)
    last = ([interaction] + over)[-1].outputs[0]
    return [*dense, interaction, *over, LogitBlock("logits", (last,), ([interaction.num_outputs] + widths)[-1])]


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
