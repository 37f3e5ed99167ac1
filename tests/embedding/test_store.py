"""Memory of a rank is its shards: nothing of a table's full size is made anywhere."""

from __future__ import annotations

import pytest
import torch

from recpipe.embedding.layout import make_layout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.rowmap import RowMap
from recpipe.embedding.store import RowStore
from recpipe.specs import TableSpec

ROWS, DIM, WORLD = 200_000, 8, 4


@pytest.mark.parametrize(("sharding", "share"), [("row_wise", 4), ("column_wise", 4), ("table_wise", 1)])
def test_a_rank_makes_its_own_rows_in_chunks(sharding, share):
    asked: list[tuple[int, int]] = []

    def init_rows(table: int, start: int, stop: int) -> torch.Tensor:
        asked.append((start, stop))
        return torch.full((stop - start, DIM), float(table))

    ranks = [2] if sharding == "table_wise" else list(range(WORLD))
    layout = make_layout(TableSpec("t", "f", ROWS, DIM), sharding, ranks, WORLD)
    store = RowStore(RowMap([layout], 2, WORLD), RowOptimizer("rowwise_adagrad"), init_rows, torch.float32)
    held = ROWS if sharding != "row_wise" else ROWS // WORLD
    assert sum(stop - start for start, stop in asked) == held
    assert max(stop - start for start, stop in asked) <= 1 << 16
    assert sum(weight.numel() for weight in store.weights) == ROWS * DIM // share
    assert store.num_bytes() == 4 * (ROWS * DIM // share + held)
