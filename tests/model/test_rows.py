"""Start of table rows: the same for any piece, different between tables, within the rule's bounds."""

from __future__ import annotations

import math

import pytest
import torch

from recpipe.model import RowInit, init_rows
from recpipe.model.rows import CHUNK_ROWS
from recpipe.specs import TableSpec

TABLE = TableSpec("t_a", "a", 2 * CHUNK_ROWS + 100, 8)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_pieces_equal_the_whole(kind):
    rule = RowInit(kind, 0.01)
    whole = init_rows(TABLE, 0, TABLE.num_rows, 3, rule=rule)
    bounds = [0, 5, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 7, 2 * CHUNK_ROWS + 7, TABLE.num_rows]
    pieces = [init_rows(TABLE, a, b, 3, rule=rule) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    assert torch.equal(torch.cat(pieces), whole)
    double = init_rows(TABLE, 0, TABLE.num_rows, 3, torch.float64, rule)
    assert torch.equal(double.float(), whole)


def test_a_piece_of_a_huge_table_is_made_alone():
    huge = TableSpec("t_huge", "huge", 40_000_000, 128)
    rows = init_rows(huge, 39_999_990, 40_000_000, 0)
    assert rows.shape == (10, 128) and rows.abs().max() <= 1 / math.sqrt(huge.num_rows)


def test_seed_table_and_chunk_matter():
    start = init_rows(TABLE, 0, 50, 3)
    others = [
        init_rows(TABLE, 0, 50, 4),
        init_rows(TableSpec("t_b", "b", TABLE.num_rows, 8), 0, 50, 3),
        init_rows(TABLE, CHUNK_ROWS, CHUNK_ROWS + 50, 3),
    ]
    assert all(not (start == other).any() for other in others)


def test_statistics_and_zero_columns():
    bound = 1 / math.sqrt(TABLE.num_rows)
    uniform = init_rows(TABLE, 0, TABLE.num_rows, 0)
    assert uniform.abs().max() <= bound and abs(uniform.std() - bound / math.sqrt(3)) < 0.02 * bound
    normal = init_rows(TABLE, 0, TABLE.num_rows, 0, rule=RowInit("normal", 0.5, num_columns=5))
    assert abs(normal[:, :5].std() - 0.5) < 0.01 and not normal[:, 5:].any()
