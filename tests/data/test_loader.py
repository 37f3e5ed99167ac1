"""Batches of global row ranges: the same rows in the same order for every number of ranks and workers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data import Loader, open_dataset
from recpipe.data.config import SHUFFLES, DataConfig, PreparedData
from recpipe.data.dataset import Dataset
from recpipe.data.prepare.job import prepare
from recpipe.data.rows import MemoryStore, Rows
from recpipe.errors import ConfigError, DataError
from recpipe.specs import Feature, Schema
from tests.data.lines import criteo_config, criteo_lines, silent, write_lines

ROWS = 103


def dataset(shuffle: str = "full", bad_row: int | None = None) -> Dataset:
    """Row r has dense value r, so that a batch shows which rows it holds."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, (ROWS, 2)).astype(np.int32)
    dense = np.arange(ROWS, dtype=np.float32)[:, None].copy()
    if bad_row is not None:
        dense[bad_row] = np.nan
    rows = Rows(dense, rng.integers(0, 9, lengths.sum()), np.zeros(ROWS, np.float32), lengths)
    schema = Schema(1, (Feature("a", 9), Feature("b", 9)))
    config = DataConfig(shuffle=shuffle, shuffle_rows=16)
    return Dataset(schema, {"train": MemoryStore.of(rows)}, "test rows", config, seed=5)


def steps(batch_size: int, first: int = 0) -> list[tuple[int, int]]:
    return [(start, min(start + batch_size, ROWS)) for start in range(first, ROWS, batch_size)]


def of_rank(ranges: list[tuple[int, int]], rank: int, ranks: int) -> list[tuple[int, int]]:
    """The rank's contiguous share of each step."""
    return [(a + (b - a) * rank // ranks, a + (b - a) * (rank + 1) // ranks) for a, b in ranges]


def epoch(data: Dataset, ranks: int, workers: int, first: int = 0) -> list[float]:
    """Rows of an epoch in global order, read by several ranks."""
    parts = [list(Loader(data, "train", 1, of_rank(steps(10, first), r, ranks), workers)) for r in range(ranks)]
    return [value for step in zip(*parts, strict=True) for batch in step for value in batch.dense_BD[:, 0].tolist()]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_union_of_ranks_is_the_epoch_once_in_one_order(shuffle: str, ranks: int, workers: int) -> None:
    data = dataset(shuffle)
    rows = epoch(data, ranks, workers)
    assert sorted(rows) == list(range(ROWS))
    assert rows == data.batch("train", 1, 0, ROWS).dense_BD[:, 0].tolist()


@settings(deadline=None, max_examples=40)
@given(
    shuffle=st.sampled_from(SHUFFLES),
    first=st.integers(0, ROWS),
    ranks=st.sampled_from([1, 2, 3, 5]),
    workers=st.sampled_from([0, 1, 2, 4]),
)
def test_restart_at_any_row_and_number_of_ranks_goes_on_in_the_same_order(
    shuffle: str, first: int, ranks: int, workers: int
) -> None:
    data = dataset(shuffle)
    whole = data.batch("train", 1, 0, ROWS).dense_BD[:, 0].tolist()
    assert epoch(data, ranks, workers, first) == whole[first:]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_order_of_mapped_shards_knows_no_ranks_or_workers(tmp_path: Path, shuffle: str) -> None:
    """The rows of one shard and of five; each rank opens the directory for itself."""
    path = write_lines(tmp_path / "train.txt", criteo_lines(150))
    orders = []
    for rows, ranks, workers in ((1000, 1, 0), (30, 3, 2), (30, 5, 4)):
        out = prepare(criteo_config(path, rows_per_shard=rows, out=str(tmp_path / f"{rows}")), silent)
        config = PreparedData(path=str(out), shuffle=shuffle, shuffle_rows=16)
        parts = []
        for rank in range(ranks):
            data = open_dataset(config, seed=3, log=silent)
            num_rows = data.num_rows("train")
            ranges = [(start, min(start + 10, num_rows)) for start in range(0, num_rows, 10)]
            parts.append(list(Loader(data, "train", 2, of_rank(ranges, rank, ranks), workers)))
        batches = [batch for step in zip(*parts, strict=True) for batch in step]
        orders.append(torch.cat([batch.ids_N.view(26, -1).T for batch in batches]).tolist())
    assert orders[0] == orders[1] == orders[2] and len(orders[0]) > 100


def test_last_batch_is_as_large_as_what_is_left() -> None:
    sizes = [batch.num_rows for batch in Loader(dataset(), "train", 0, steps(25), 2)]
    assert sizes == [25, 25, 25, 25, 3]


def test_ids_follow_their_rows() -> None:
    data = dataset()
    whole = data.batch("train", 0, 0, ROWS)
    one_by_one = [data.batch("train", 0, r, r + 1) for r in range(ROWS)]
    lengths = torch.stack([batch.lengths_FB for batch in one_by_one], dim=1).reshape(-1)
    assert whole.lengths_FB.tolist() == lengths.tolist()
    bags = [b.ids_N.split(b.lengths_FB.tolist()) for b in one_by_one]
    ids = torch.cat([bag[f] for f in range(2) for bag in bags])
    assert whole.ids_N.tolist() == ids.tolist()


def test_empty_range_and_absent_split_give_empty_batches() -> None:
    data = dataset()
    assert data.batch("train", 0, 50, 50).num_rows == 0
    assert data.num_rows("valid") == 0
    assert data.batch("valid", 0, 0, 0).dense_BD.shape == (0, 1)


def test_range_outside_the_split_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rows \[100, 104\) are outside the 103 rows of split train"):
        dataset().batch("train", 0, 100, 104)
    with pytest.raises(ConfigError, match="did you mean train"):
        dataset().num_rows("trian")


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_a_worker_surfaces_at_its_batch(workers: int) -> None:
    batches = iter(Loader(dataset("none", bad_row=60), "train", 0, steps(10), workers))
    assert [next(batches).num_rows for _ in range(6)] == [10] * 6
    with pytest.raises(DataError, match="row 60, dense column 0"):
        next(batches)


def test_workers_stay_a_bounded_number_of_batches_ahead() -> None:
    asked = []

    def ranges():  # type: ignore[no-untyped-def]
        for start in range(100):
            asked.append(start)
            yield (start, start + 1)

    batches = iter(Loader(dataset(), "train", 0, ranges(), 2))
    next(batches)
    assert len(asked) <= 7
    batches.close()  # type: ignore[attr-defined]


def test_only_training_rows_are_shuffled() -> None:
    rows = MemoryStore.of(
        Rows(np.arange(50, dtype=np.float32)[:, None], np.zeros((50, 1), int), np.zeros(50, np.float32))
    )
    data = Dataset(
        Schema(1, (Feature("a", 1),)), {"train": rows, "valid": rows}, "", DataConfig(shuffle="full"), seed=0
    )
    assert data.batch("valid", 3, 0, 50).dense_BD[:, 0].tolist() == list(range(50))
    assert data.batch("train", 3, 0, 50).dense_BD[:, 0].tolist() != list(range(50))
