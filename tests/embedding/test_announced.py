"""Case 140: a count that was changed is an error with both ranks and both numbers, before anything is received by it."""

from __future__ import annotations

import pytest
import torch

from recpipe.embedding.announced import check_counts, check_own_counts, packed, unpacked
from recpipe.errors import TrainingError
from recpipe.runtime.hand_on import _check
from tests.ranks import run_ranks
from tests.train.jobs import small_config
from tests.train.resuming import train

CHANGES = {"one less": -1, "one more": 1, "huge": 1 << 40, "negative": -(1 << 20)}


def test_two_numbers_in_one():
    for largest, total in ((0, 0), (5, 7), ((1 << 31) - 1, (1 << 31) - 1), (3, 1 << 31)):
        assert unpacked(packed(largest, total)) == (largest, total % ((1 << 31) - 1))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["count", "header"])
def test_a_changed_size_is_seen(place, change):
    headers, counts = torch.tensor([[4, 0], [4, 4]]), torch.tensor([[1, 2, 0], [3, 0, 5]])
    totals = [7, 16]
    check_counts(0, totals, headers, counts)
    (counts if place == "count" else headers)[1, 0] += CHANGES[change]
    said = rf"rank 1 announced sizes with the sum 16 to rank 0, where they add up to {16 + CHANGES[change]}"
    with pytest.raises(TrainingError, match=said):
        check_counts(0, totals, headers, counts)


def test_counts_that_even_out_but_are_negative_are_seen():
    with pytest.raises(TrainingError, match="rank 0 announced"):
        check_counts(1, [3], torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[-1, 4]]))


def test_own_counts_are_held_against_what_is_asked_for():
    check_own_counts(0, [2, 3], 5)
    with pytest.raises(TrainingError, match="rank 0 announced 4 rows to ranks 0 to 1, but asks for 5"):
        check_own_counts(0, [2, 2], 5)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_size_of_a_part_of_data_is_seen(change):
    sizes = [3, 9, 0, 0, 1]
    _check(0, 1, [*sizes, sum(sizes)])
    wrong = [sizes[0] + CHANGES[change], *sizes[1:]]
    with pytest.raises(TrainingError, match=rf"rank 1 .* sum 13 to rank 0, where its sizes add up to {13 + CHANGES[change]}"):
        _check(0, 1, [*wrong, sum(sizes)])


def change_one(rank, world, cfg, purpose, place, change):
    """Rank 1 receives one changed number in the third message of a purpose; what it says."""
    from recpipe.comm import Lane

    plain, seen = Lane.all_to_all, []

    def all_to_all(self, send, *given, **named):
        pending = plain(self, send, *given, **named)
        if rank == 1 and self._purpose == purpose and send.dtype == torch.int64:
            seen.append(pending)
            if len(seen) == 3:
                pending.wait()
                pending.received[place] += change
        return pending

    Lane.all_to_all = all_to_all
    train(rank, world, cfg)


@pytest.mark.parametrize(
    ("settings", "purpose", "place"),
    [
        ({}, "ids", 3),
        ({"schedule__embedding": "spread", "schedule__microbatches": 2}, "ids", 4),
        ({"mesh__stages": 2}, "ids", 0),
        ({"mesh__stages": 2, "mesh__feed": "everyone"}, "feed", 1),
        ({"tables__sharding": "column_wise", "optimizer__table__name": "rowwise_adagrad"}, "ids", -1),
    ],
    ids=["window", "deferred", "message between stages", "feed", "column squares"],
)
def test_a_run_ends_with_the_error_of_the_rank_that_saw_it(tmp_path, settings, purpose, place):
    cfg = small_config(2, run__dir=str(tmp_path), **settings)
    with pytest.raises(Exception, match=r"TrainingError: rank \d announced .* to rank 1, where .* add up to"):
        run_ranks(change_one, 2, cfg, purpose, place, 1)
