"""Drawn rows: as skewed as Criteo's, the same on every rank, and each consumer's own share of them."""

from __future__ import annotations

import itertools

import torch

from recpipe.bench.rows import drawn, my_batches
from recpipe.bench.settings import Workload


def work(ids: str, batch_size: int = 1024) -> Workload:
    return Workload("dlrm", ids, "", ranks=2, batch_size=batch_size, rows=200_000, dim=8, num_batches=2)


def unique_share(ids: str, batch_size: int) -> float:
    batch = drawn(work(ids, batch_size))[0]
    return sum(ids.unique().numel() for ids in batch.ids_N.view(26, -1)) / batch.ids_N.numel()


def test_skewed_ids_repeat_as_often_as_criteos():
    # Measured on real rows: 2,048 rows have .264 unique, 4,096 rows .222.
    assert abs(unique_share("skewed", 1024) - 0.264) < 0.01
    assert abs(unique_share("skewed", 2048) - 0.222) < 0.01


def test_uniform_ids_hardly_repeat():
    assert unique_share("uniform", 1024) > 0.98


def test_shares_make_up_the_batch_and_come_round():
    batches = drawn(work("skewed", 8))
    first, second, nobody = (list(itertools.islice(my_batches(batches, who, 2), 4)) for who in (0, 1, None))
    for step in range(4):
        whole = batches[step % 2]
        assert torch.equal(torch.cat([first[step].dense_BD, second[step].dense_BD]), whole.dense_BD)
        ids = [part.ids_N.view(26, -1) for part in (first[step], second[step])]
        assert torch.equal(torch.cat(ids, dim=1), whole.ids_N.view(26, -1))
        assert nobody[step].num_rows == 0
    assert not torch.equal(batches[0].ids_N, batches[1].ids_N)
