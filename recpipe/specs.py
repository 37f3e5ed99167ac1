"""What a data set offers and what a model asks of tables: plain records shared by every layer.

Standard library only, so that the planner and the simulator can use them without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

POOLINGS = ("sum", "mean")


@dataclass(frozen=True)
class Feature:
    """One categorical feature of a data set.

    Args:
        name: column name, for example ``cat_0``.
        num_ids: ids lie in ``[0, num_ids)``.
        mean_ids: mean number of ids in a row (the pooling factor); 1.0 for one-hot columns.
        weighted: each id carries a float weight.
        zero_rows: ids that no training row has and other rows may have (a missing value, an unseen one): their rows start at
            zero and stay there until something trains them.
        pooling: ``sum`` or ``mean``, how the rows of one bag become one vector.
    """

    name: str
    num_ids: int
    mean_ids: float = 1.0
    weighted: bool = False
    zero_rows: tuple[int, ...] = ()
    pooling: str = "sum"


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
        zero_rows: rows that start at zero.
    """

    name: str
    feature: str
    num_rows: int
    dim: int
    pooling: str = "sum"
    zero_rows: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        return self.num_rows * self.dim
