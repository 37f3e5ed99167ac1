"""Orders of an epoch: every row once, a function of seed, epoch and position alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data.order import Order
from recpipe.data.permutation import permute
from recpipe.errors import ConfigError


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_permutation_is_a_bijection(size: int, key: int) -> None:
    image = permute(np.arange(size), size, key)
    assert sorted(image) == list(range(size))


def test_permutation_of_a_huge_domain_needs_no_table() -> None:
    size = 4_195_197_692
    image = permute(np.arange(100_000) * 41_951, size, key=7)
    assert image.min() >= 0 and image.max() < size
    assert len(np.unique(image)) == 100_000
    assert abs(image.mean() / size - 0.5) < 0.01


@pytest.mark.parametrize("kind", ["none", "window", "block", "full"])
@pytest.mark.parametrize("rows", [1, 7, 64, 100])
def test_every_row_once_however_it_is_cut(kind: str, rows: int) -> None:
    order = Order(kind, rows, seed=3, span=16)
    whole = order.rows(2, 0, rows)
    assert sorted(whole) == list(range(rows))
    for step in (1, 3, 17):
        pieces = [order.rows(2, start, min(start + step, rows)) for start in range(0, rows, step)]
        assert np.concatenate(pieces).tolist() == whole.tolist()


@pytest.mark.parametrize("kind", ["window", "block", "full"])
def test_seed_and_epoch_change_the_order(kind: str) -> None:
    first = Order(kind, 500, seed=1, span=50).rows(0, 0, 500).tolist()
    assert first != Order(kind, 500, seed=1, span=50).rows(1, 0, 500).tolist()
    assert first != Order(kind, 500, seed=2, span=50).rows(0, 0, 500).tolist()
    assert first == Order(kind, 500, seed=1, span=50).rows(0, 0, 500).tolist()


def test_window_stays_near_and_block_moves_whole_blocks() -> None:
    window = Order("window", 100, seed=0, span=10).rows(0, 0, 100)
    assert (window // 10 == np.arange(100) // 10).all()
    block = Order("block", 100, seed=0, span=10).rows(0, 0, 100).reshape(10, 10)
    assert all(len(set(row // 10)) == 1 for row in block)
    assert [row[0] // 10 for row in block] != list(range(10))


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean window"):
        Order("windows", 10, seed=0)
