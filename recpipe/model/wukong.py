"""Wukong as a list of blocks (Zhang et al., 2024): stacked interaction layers over a row's vectors, a block each.

A layer makes new vectors in two ways, from pair products and as linear combinations, and adds them to what came in.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from recpipe.model.block import Block
from recpipe.model.check import require_at_least, require_over_arch, require_widths
from recpipe.model.config import WukongConfig
from recpipe.model.context import StepContext
from recpipe.model.dense_arch import dense_arch
from recpipe.model.dropout import relu_dropout_
from recpipe.model.join import FlattenBlock
from recpipe.model.layers import Affine, VectorNorm, over_arch
from recpipe.specs import Schema


class VectorsBlock(Block):
    """The rows and the bottom tower's output as one set of vectors: ``[B, F, D], [B, D] -> [B, F + 1, D]``."""

    def __init__(self, name: str, dense_name: str) -> None:
        super().__init__(name, ("rows_BFD", dense_name), (name + "_BVD",))

    def forward(self, rows_BFD: torch.Tensor, dense_BD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        return torch.cat([rows_BFD, dense_BD.unsqueeze(1)], dim=1)


class WukongBlock(Block):
    """One interaction layer: ``[B, V, D] -> [B, W, D]``, W = ``num_fm_vectors + num_linear_vectors``."""

    def __init__(self, name: str, source: str, num_vectors: int, cfg: WukongConfig) -> None:
        super().__init__(name, (source,), (name + "_BVD",))
        self.dim, self.dropout = cfg.embedding_dim, cfg.dropout
        self.num_fm_vectors = cfg.num_fm_vectors
        self.num_outputs = cfg.num_fm_vectors + cfg.num_linear_vectors
        self.project = Affine(num_vectors, cfg.fm_rank, bias=False)
        self.products_norm = VectorNorm(num_vectors * cfg.fm_rank)
        widths = [num_vectors * cfg.fm_rank, *cfg.fm_arch_layer_sizes, cfg.num_fm_vectors * cfg.embedding_dim]
        self.fm_arch = nn.ModuleList(Affine(a, b) for a, b in pairwise(widths))
        self.combine = Affine(num_vectors, cfg.num_linear_vectors, bias=False)
        self.carry = Affine(num_vectors, self.num_outputs, bias=False) if num_vectors != self.num_outputs else None
        self.norm = VectorNorm(cfg.embedding_dim)

    def forward(self, x_BVD: torch.Tensor, *, context: StepContext) -> torch.Tensor:
        x_BDV = x_BVD.transpose(1, 2)
        linear_BWD = self.combine(x_BDV).transpose(1, 2)
        carried_BWD = x_BVD if self.carry is None else self.carry(x_BDV).transpose(1, 2)
        made_BWD = torch.cat([self._fm_vectors(x_BVD, x_BDV, context), linear_BWD], dim=1)
        normed_BWD: torch.Tensor = self.norm(made_BWD + carried_BWD)
        return normed_BWD

    def _fm_vectors(self, x_BVD: torch.Tensor, x_BDV: torch.Tensor, context: StepContext) -> torch.Tensor:
        # X (X^T Y) instead of (X X^T) Y: the V x V products are never made.
        products_BVR = torch.bmm(x_BVD, self.project(x_BDV))
        h_BH = self.products_norm(products_BVR.flatten(1))
        for position, affine in enumerate(self.fm_arch[:-1]):
            h_BH = relu_dropout_(affine(h_BH), self.dropout, f"{self.name}/{position}", context)
        flat_BK: torch.Tensor = self.fm_arch[-1](h_BH)
        return flat_BK.view(flat_BK.shape[0], self.num_fm_vectors, self.dim)


def wukong_blocks(cfg: WukongConfig, schema: Schema) -> list[Block]:
    """Blocks ``[dense_0 .., vectors], wukong_0 .., flatten, over_0 .., logits``.

    Raises:
        ConfigError: layer sizes or counts do not fit.
    """
    _check(cfg)
    dense = dense_arch(cfg.dense_arch_layer_sizes, cfg.embedding_dim, schema, cfg.batch_norm)
    blocks: list[Block] = [*dense, VectorsBlock("vectors", dense[-1].outputs[0])] if dense else []
    source = blocks[-1].outputs[0] if blocks else "rows_BFD"
    num_vectors = len(schema.features) + bool(dense)
    for position in range(cfg.num_layers):
        layer = WukongBlock(f"wukong_{position}", source, num_vectors, cfg)
        source, num_vectors = layer.outputs[0], layer.num_outputs
        blocks.append(layer)
    width = num_vectors * cfg.embedding_dim
    over = over_arch("flatten_BK", width, cfg.over_arch_layer_sizes, cfg.dropout, cfg.batch_norm)
    return [*blocks, FlattenBlock("flatten", source), *over]


def _check(cfg: WukongConfig) -> None:
    require_over_arch(cfg.over_arch_layer_sizes)
    for key in ("num_layers", "num_fm_vectors", "num_linear_vectors", "fm_rank"):
        require_at_least(key, getattr(cfg, key), 1)
    if cfg.fm_arch_layer_sizes:
        require_widths("fm_arch_layer_sizes", cfg.fm_arch_layer_sizes)
