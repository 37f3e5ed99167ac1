"""Attention over a row's feature vectors as a list of blocks: two a layer, so that a cut may lie inside one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from recpipe.errors import ConfigError
from recpipe.model.block import Block
from recpipe.model.check import require_at_least, require_over_arch
from recpipe.model.config import FeatureTransformerConfig
from recpipe.model.context import StepContext
from recpipe.model.dropout import dropout, relu_dropout_
from recpipe.model.join import FlattenBlock
from recpipe.model.layers import Affine, VectorNorm, fill_normal, over_arch
from recpipe.specs import Schema


class FeatureVectors(Block):
    """A vector for every feature and dense column: ``[B, num_dense], [B, F, D] -> [B, F + num_dense, D]``.

    A dense column's vector is its value times a learned vector; every vector gets its feature's own offset.
    """

    def __init__(self, name: str, num_dense: int, num_features: int, dim: int) -> None:
        super().__init__(name, ("dense_BD", "rows_BFD"), (name + "_BVD",))
        self.scale = nn.Parameter(torch.empty(num_dense, dim))
        self.offset = nn.Parameter(torch.empty(num_features + num_dense, dim))

    def reset(self, generator: torch.Generator) -> None:
        for weight in (self.scale, self.offset):
            fill_normal(weight, weight.shape[1] ** -0.5, generator)

    def forward(self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return torch.cat([rows_BFD, dense_BD.unsqueeze(2) * self.scale], dim=1) + self.offset


class AttentionBlock(Block):
    """``x + attention(norm(x))``, ``[B, V, D] -> [B, V, D]``."""

    def __init__(self, name: str, source: str, cfg: FeatureTransformerConfig) -> None:
        super().__init__(name, (source,), (name + "_BVD",))
        self.num_heads, self.dropout = cfg.num_heads, cfg.dropout
        self.norm = VectorNorm(cfg.embedding_dim)
        dim = cfg.embedding_dim
        # Queries, keys, values. The bias of keys adds the same to every score of a query, which softmax takes out again.
        self.project = Affine(dim, 3 * dim, idle=slice(dim, 2 * dim))
        self.out = Affine(cfg.embedding_dim, cfg.embedding_dim)

    def forward(self, x_BVD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        num_rows, num_vectors, dim = x_BVD.shape
        qkv_BVHE = self.project(self.norm(x_BVD)).view(num_rows, num_vectors, 3 * self.num_heads, dim // self.num_heads)
        q_BHVE, k_BHVE, v_BHVE = qkv_BVHE.transpose(1, 2).chunk(3, dim=1)
        mixed_BVD = F.scaled_dot_product_attention(q_BHVE, k_BHVE, v_BHVE).transpose(1, 2).flatten(2)
        return x_BVD + dropout(self.out(mixed_BVD), self.dropout, self.name, context)


class FeedForwardBlock(Block):
    """``x + W relu(V norm(x))``, ``[B, V, D] -> [B, V, D]``."""

    def __init__(self, name: str, source: str, cfg: FeatureTransformerConfig) -> None:
        super().__init__(name, (source,), (name + "_BVD",))
        self.dropout = cfg.dropout
        self.norm = VectorNorm(cfg.embedding_dim)
        self.widen = Affine(cfg.embedding_dim, cfg.feed_forward_dim)
        self.narrow = Affine(cfg.feed_forward_dim, cfg.embedding_dim)

    def forward(self, x_BVD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        hidden_BVH = relu_dropout_(self.widen(self.norm(x_BVD)), self.dropout, self.name, context)
        narrowed_BVD: torch.Tensor = self.narrow(hidden_BVH)
        return x_BVD + narrowed_BVD


def feature_transformer_blocks(cfg: FeatureTransformerConfig, schema: Schema) -> list[Block]:
    """Blocks ``vectors, attention_0, feed_forward_0, .., flatten, over_0 .., logits``.

    Raises:
        ConfigError: layer sizes do not fit, or the heads do not divide ``embedding_dim``.
    """
    _check(cfg)
    blocks: list[Block] = [FeatureVectors("vectors", schema.num_dense, len(schema.features), cfg.embedding_dim)]
    for position in range(cfg.num_layers):
        blocks.append(AttentionBlock(f"attention_{position}", blocks[-1].outputs[0], cfg))
        blocks.append(FeedForwardBlock(f"feed_forward_{position}", blocks[-1].outputs[0], cfg))
    blocks.append(FlattenBlock("flatten", blocks[-1].outputs[0]))
    width = (schema.num_dense + len(schema.features)) * cfg.embedding_dim
    return [*blocks, *over_arch("flatten_BK", width, cfg.over_arch_layer_sizes, cfg.dropout, cfg.batch_norm)]


def _check(cfg: FeatureTransformerConfig) -> None:
    require_over_arch(cfg.over_arch_layer_sizes)
    for key in ("num_layers", "num_heads", "feed_forward_dim"):
        require_at_least(key, getattr(cfg, key), 1)
    if cfg.embedding_dim % cfg.num_heads:
        raise ConfigError(
            f"model.num_heads={cfg.num_heads} does not divide model.embedding_dim={cfg.embedding_dim}: "
            f"each head takes an equal part of a vector"
        )
