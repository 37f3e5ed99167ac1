"""Pinned ranks are held against the sharding type. Case 107."""

from __future__ import annotations

import pytest

from recpipe.embedding.placement import PlacementOptions, place_tables
from recpipe.errors import PlanError
from recpipe.specs import TableSpec

SPECS = [TableSpec("t_a", "a", 1000, 16), TableSpec("t_b", "b", 10, 16)]


def placed(sharding: str, ranks: list[int], local_size: int = 1) -> tuple[int, ...]:
    options = PlacementOptions(sharding=sharding, local_size=local_size, pins={"t_a": ranks})
    return place_tables(SPECS, 8, options)[0].ranks()


@pytest.mark.parametrize(
    ("sharding", "ranks", "said"),
    [
        ("table_wise", [0, 1], "table_wise takes exactly 1"),
        ("table_wise", [], "names no rank"),
        ("column_wise", [0, 0], "names rank 0 twice"),
        ("row_wise", [3, 1, 3], "names rank 3 twice"),
        ("row_wise", [-1], "names rank -1, but there are 8 ranks"),
        ("row_wise", [0, 8], "names rank 8, but there are 8 ranks"),
        ("replicated", [1], "takes no pins"),
        ("table_row_wise", [3, 4], "ranks of one node"),
        ("table_column_wise", [0, 7], "ranks of one node"),
        ("grid", [0, 1, 2], "a multiple of 4"),
        ("grid", [0, 1, 2, 3, 4, 5], "a multiple of 4"),
        ("grid", [0, 1, 2, 4], "whole nodes"),
    ],
)
def test_pins_that_a_type_does_not_take_are_refused(sharding: str, ranks: list[int], said: str) -> None:
    """Case 107: before, ranks were dropped or ignored."""
    with pytest.raises(PlanError, match=r"table t_a: tables\.pins names") as error:
        placed(sharding, ranks, local_size=4)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("sharding", "ranks"),
    [
        ("auto", [3]),
        ("auto", [3, 5]),
        ("table_wise", [7]),
        ("row_wise", [1, 4]),
        ("column_wise", [6, 2]),
        ("table_row_wise", [4, 5, 6, 7]),
        ("table_column_wise", [5, 6]),
        ("grid", [4, 5, 6, 7, 0, 1, 2, 3]),
    ],
)
def test_every_pinned_rank_holds_a_part(sharding: str, ranks: list[int]) -> None:
    assert placed(sharding, ranks, local_size=4) == tuple(sorted(ranks))
