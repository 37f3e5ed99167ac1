"""What a user can set of a model: one plain dataclass a model, found by the name of its YAML file in ``conf/model``.

Standard library only, so that the command line can read it without torch. What a setting has to satisfy is checked where
the model is built.
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
        batch_norm: batch normalisation in hidden layers. Its statistics are those of one microbatch on one replica, so with
            it on the result depends on how the rows are split: the exactness contract holds only with it off.
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


SCHEMAS: dict[str, type[ModelConfig]] = {
    "dlrm": DlrmConfig,
    "dcn_v2": DcnV2Config,
}
