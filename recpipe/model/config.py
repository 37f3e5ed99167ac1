"""What a user can set of a model: one plain dataclass a model, found by the name of its YAML file in ``conf/model``.

Standard library only, so that the command line can read it without torch. What a setting has to satisfy is checked
where the model is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelConfig:
    """Settings every model has.

    Args:
        name: the model, see ``SCHEMAS``.
        embedding_dim: floats of an embedding vector.
        dropout: share of the units of each hidden layer set to zero in training; the same for any split of the rows.
        batch_norm: batch normalisation in hidden layers. It couples the rows of a step, so a step has to be computed in one
            piece: one replica (of any number of stages) and one microbatch; anything else is refused. A last step of one
            row goes by the running statistics.
        row_init: ``uniform`` (within 1 / sqrt(rows of the table)) or ``normal`` (standard deviation ``row_init_std``).
        row_init_std: standard deviation of ``normal``.
    """

    name: str
    embedding_dim: int = 16
    dropout: float = 0.0
    batch_norm: bool = False
    row_init: str = "uniform"
    row_init_std: float = 1e-4


@dataclass
class DlrmConfig(ModelConfig):
    """DLRM: a bottom tower over the dense columns, dot products of all pairs of vectors, a top tower.

    Args:
        dense_arch_layer_sizes: widths of the bottom tower; the last is ``embedding_dim``.
        over_arch_layer_sizes: widths of the top tower; the last is 1.
        interaction_type: ``original`` (dot products) or ``dcn`` (cross layers, the same as ``model=dcn_v2``).
        dcn_num_layers: cross layers, with ``interaction_type=dcn``.
        dcn_low_rank_dim: rank of a cross layer, with ``interaction_type=dcn``.
    """

    name: str = "dlrm"
    dense_arch_layer_sizes: list[int] = field(default_factory=lambda: [64, 32, 16])
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [256, 128, 1])
    interaction_type: str = "original"
    dcn_num_layers: int = 3
    dcn_low_rank_dim: int = 64


@dataclass
class DcnV2Config(ModelConfig):
    """DCN-V2: cross layers over dense columns and rows, with a deep tower behind them or beside them.

    Args:
        dense_arch_layer_sizes: widths of a bottom tower over the dense columns; empty: the columns go in as they are.
        over_arch_layer_sizes: widths of the deep tower; the last is 1.
        structure: ``stacked`` (cross, then deep) or ``parallel`` (both from the input, joined in the last layer).
        dcn_num_layers: cross layers.
        dcn_low_rank_dim: rank of a cross layer's matrix; 0: a full matrix.
    """

    name: str = "dcn_v2"
    dense_arch_layer_sizes: list[int] = field(default_factory=list)
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [256, 128, 1])
    structure: str = "parallel"
    dcn_num_layers: int = 3
    dcn_low_rank_dim: int = 0


@dataclass
class DeepFmConfig(ModelConfig):
    """DeepFM: first-order weights, products of all pairs of vectors, and a deep tower, added in the logit.

    A table row holds ``embedding_dim`` floats of a vector, the first-order weight, and zeros up to a multiple of 4.

    Args:
        over_arch_layer_sizes: widths of the deep tower; the last is 1.
    """

    name: str = "deepfm"
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [256, 128, 1])


@dataclass
class WideDeepConfig(ModelConfig):
    """Wide & Deep: first-order weights and a deep tower, added in the logit. Rows are those of :class:`DeepFmConfig`.

    Args:
        over_arch_layer_sizes: widths of the deep tower; the last is 1.
    """

    name: str = "wide_deep"
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [256, 128, 1])


@dataclass
class WukongConfig(ModelConfig):
    """Wukong: stacked layers, each a factorization machine block beside a linear compression of the vectors.

    Args:
        dense_arch_layer_sizes: widths of the bottom tower, which gives one more vector; the last is ``embedding_dim``.
        num_layers: interaction layers.
        num_fm_vectors: vectors a layer makes from pair products.
        num_linear_vectors: vectors a layer makes as linear combinations of its input vectors.
        fm_rank: columns of the projection that the pair products are compressed by.
        fm_arch_layer_sizes: hidden widths of the tower from compressed products to vectors.
        over_arch_layer_sizes: widths of the top tower; the last is 1.
    """

    name: str = "wukong"
    dense_arch_layer_sizes: list[int] = field(default_factory=lambda: [64, 32, 16])
    num_layers: int = 3
    num_fm_vectors: int = 16
    num_linear_vectors: int = 16
    fm_rank: int = 16
    fm_arch_layer_sizes: list[int] = field(default_factory=lambda: [256])
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [256, 1])


@dataclass
class FeatureTransformerConfig(ModelConfig):
    """Attention over a row's feature vectors, one for each categorical feature and each dense column.

    Args:
        num_layers: pairs of an attention and a feed-forward block.
        num_heads: attention heads; divides ``embedding_dim``.
        feed_forward_dim: hidden width of the feed-forward blocks.
        over_arch_layer_sizes: widths of the tower over all vectors; the last is 1.
    """

    name: str = "feature_transformer"
    num_layers: int = 2
    num_heads: int = 2
    feed_forward_dim: int = 64
    over_arch_layer_sizes: list[int] = field(default_factory=lambda: [128, 1])


SCHEMAS: dict[str, type[ModelConfig]] = {
    "dlrm": DlrmConfig,
    "dcn_v2": DcnV2Config,
    "deepfm": DeepFmConfig,
    "wide_deep": WideDeepConfig,
    "wukong": WukongConfig,
    "feature_transformer": FeatureTransformerConfig,
}
