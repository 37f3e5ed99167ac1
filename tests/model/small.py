"""Small schemas, settings and rows for the tests of models."""

from __future__ import annotations

import torch

from recpipe.model.config import (
    SCHEMAS,
    DcnV2Config,
    DeepFmConfig,
    DlrmConfig,
    FeatureTransformerConfig,
    ModelConfig,
    WideDeepConfig,
    WukongConfig,
)
from recpipe.model.model import Model
from recpipe.specs import Feature, Schema

SETTINGS: dict[str, ModelConfig] = {
    "dlrm": DlrmConfig(embedding_dim=4, dense_arch_layer_sizes=[5, 4], over_arch_layer_sizes=[6, 3, 1]),
    "dlrm_dcn": DlrmConfig(
        embedding_dim=4,
        dense_arch_layer_sizes=[5, 4],
        over_arch_layer_sizes=[6, 1],
        interaction_type="dcn",
        dcn_num_layers=2,
        dcn_low_rank_dim=3,
    ),
    "dcn_v2": DcnV2Config(embedding_dim=4, over_arch_layer_sizes=[6, 3, 1], dcn_num_layers=2),
    "deepfm": DeepFmConfig(embedding_dim=4, over_arch_layer_sizes=[6, 3, 1]),
    "wide_deep": WideDeepConfig(embedding_dim=4, over_arch_layer_sizes=[6, 3, 1]),
    "wukong": WukongConfig(
        embedding_dim=4,
        dense_arch_layer_sizes=[4],
        num_layers=2,
        num_fm_vectors=2,
        num_linear_vectors=3,
        fm_rank=2,
        fm_arch_layer_sizes=[5],
        over_arch_layer_sizes=[4, 1],
    ),
    "feature_transformer": FeatureTransformerConfig(embedding_dim=4, feed_forward_dim=6, over_arch_layer_sizes=[4, 1]),
}
assert {cfg.name for cfg in SETTINGS.values()} == set(SCHEMAS)


def small_schema(num_features: int = 3, num_dense: int = 2) -> Schema:
    return Schema(num_dense, tuple(Feature(f"cat_{i}", 7 + i) for i in range(num_features)))


def small_rows(model: Model, num_rows: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense values and rows that need gradients."""
    generator = torch.Generator().manual_seed(3)
    dense_BD = torch.randn(num_rows, model.num_dense, generator=generator, dtype=dtype)
    rows_BFD = torch.randn(num_rows, len(model.tables), model.row_dim, generator=generator, dtype=dtype)
    return dense_BD, rows_BFD.requires_grad_()
