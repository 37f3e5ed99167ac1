"""The bottom tower over the dense columns, shared by the models that have one."""

from __future__ import annotations

from collections.abc import Sequence

from recpipe.model.check import require_dense_arch
from recpipe.model.layers import HiddenBlock, hidden_blocks
from recpipe.specs import Schema


def dense_arch(widths: Sequence[int], embedding_dim: int, schema: Schema, batch_norm: bool) -> list[HiddenBlock]:
    """Blocks ``dense_0, ...`` from ``dense_BD`` to ``[B, embedding_dim]``; none where the data has no dense column.

    There is no dropout here: the output is a vector beside the rows, and a dropped unit would drop products with it.

    Raises:
        ConfigError: the last width is not ``embedding_dim``.
    """
    require_dense_arch(widths, embedding_dim)
    return hidden_blocks("dense", "dense_BD", schema.num_dense, widths, 0.0, batch_norm) if schema.num_dense else []
