"""What a data set offers and what a model asks of tables: plain records shared by every layer.

Standard library only, so that the planner and the simulator can use them without torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One categorical feature of a data set.

    Args:
        name: column name, for example ``cat_0``.
        num_ids: ids lie in ``[0, num_ids)``.
        mean_ids: mean number of ids in a row (the pooling factor); 1.0 for one-hot columns.
        weighted: each id carries a float weight.
    """

    name: str
    num_ids: int
    mean_ids: float = 1.0
    weighted: bool = False


@dataclass(frozen=True)
class Schema:
    """The columns that reach a model: ``num_dense`` floats and the categorical features, in order."""

    num_dense: int
    features: tuple[Feature, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)


@dataclass(frozen=True)
class TableSpec:
    """One embedding table, used by exactly one feature.

    Args:
        name: ``t_<feature>``, the name engineers know from TorchRec's Criteo scripts.
        feature: the feature whose ids index it.
        num_rows: rows of the table.
        dim: floats in a row.
        pooling: ``sum`` or ``mean``, how the rows of one bag become one vector.
    """

    name: str
    feature: str
    num_rows: int
    dim: int
    pooling: str = "sum"

    @property
    def num_elements(self) -> int:
        return self.num_rows * self.dim
