"""Case 138: parts without elements go through `mesh.feed=everyone`: no dense column, bags that are all empty, no row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recpipe.batch import Batch, join_batches
from recpipe.comm import Lane, Traffic
from recpipe.runtime.hand_on import HandOn


def batch(num_rows, num_dense, lengths, weighted=False):
    num_ids = sum(lengths)
    return Batch(
        dense_BD=torch.rand(num_dense, num_rows).t(),
        ids_N=torch.arange(num_ids),
        lengths_FB=torch.tensor(lengths, dtype=torch.int32),
        labels_B=torch.rand(num_rows),
        weights_N=torch.rand(num_ids) if weighted else None,
    )


EMPTY = batch(0, 2, [])
CASES = {
    "no dense column": batch(3, 0, [1, 0, 2, 1, 1, 1]),
    "all bags empty": batch(3, 2, [0] * 6),
    "all bags empty, ids of stride 0": replace(batch(3, 2, [0] * 6), ids_N=torch.empty(0).long().as_strided((0,), (0,))),
    "nothing but labels": batch(3, 0, [0] * 6),
    "one row": batch(1, 0, [1, 0]),
    "weights": batch(2, 1, [1, 0, 0, 2], True),
    "weights of empty bags": batch(2, 1, [0] * 4, True),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_arrive_as_they_were_sent(case):
    part = CASES[case]
    lane = Lane(None, 0, 1, Traffic(), "feed")
    (arrived,) = HandOn(lane, 2, part.dense_BD.shape[1]).batches([{0: part}], EMPTY)
    for name in ("dense_BD", "ids_N", "lengths_FB", "labels_B", "weights_N"):
        mine, theirs = getattr(part, name), getattr(arrived, name)
        assert (mine is None and theirs is None) or torch.equal(mine, theirs), name
    assert join_batches([arrived, arrived], 2).num_rows == 2 * part.num_rows
