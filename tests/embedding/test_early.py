"""Rows sent ahead of time, gradients after it: the same results, no byte more, and wrong once an update comes too late."""

from __future__ import annotations

import pytest
import torch

from recpipe.bench.wire import Tape, recording
from recpipe.comm import Traffic, lane
from recpipe.embedding import early
from tests.embedding.plain import make_batch
from tests.embedding.test_window import (
    LR,
    STEPS,
    TYPES,
    assert_equal,
    loss_gradient,
    rows_of,
    snapshot,
    specs_of,
    tables_of,
    train_plain,
    train_sharded,
)
from tests.ranks import run_ranks


def train_ahead(rank, world, sharding, optimizer, kind, micro, fault="", defer=False):
    """As `train_sharded`, with ids routed one step ahead and early rows sent before the update of the step before.

    With `defer`, gradients of rows that the next step does not touch are sent and applied under that step.
    """
    specs, traffic = specs_of(kind), Traffic()
    tables = tables_of(specs, sharding, world, optimizer, traffic)
    if fault == "no patch":
        early.TouchedRows.untouched = lambda self, rows_Q, *rest: torch.ones(rows_Q.numel(), dtype=torch.bool)

    def opened(step):
        batch = make_batch(rows_of(rank, step), specs, 100 * step + rank, kind, torch.float64)
        return tables.open(batch.microbatches(micro))

    outputs, window = [], opened(0)
    window.request()
    for step in range(STEPS):
        following = opened(step + 1)
        following.request()
        window.lookup(LR)
        for m in range(micro):
            window.send_rows(m)
        following.tell_early(window, defer)
        got = [window.pool(m) for m in range(micro)]
        outputs.append(torch.cat(got))
        tables.send_deferred()
        if fault == "late update":
            following.gather_early()
        tables.settle()
        if fault != "late update":
            following.gather_early()
        following.send_early()
        for m in range(micro):
            window.add_gradient(m, loss_gradient(got[m]))
            window.send_gradients(m)
        window.update(step + 1)
        window = following
    if fault != "lost":
        tables.settle()
    return outputs, snapshot(tables), dict(traffic.sent)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sharding", [*TYPES, "mixed"])
def test_every_layout(sharding, world):
    results = run_ranks(train_ahead, world, sharding, "rowwise_adagrad", "one_hot", 2)
    assert_equal(results, train_plain(world, "rowwise_adagrad", "one_hot"))


@pytest.mark.parametrize("kind", ["multi_hot", "weighted"])
def test_bags(kind):
    results = run_ranks(train_ahead, 2, "mixed", "adam", kind, 3)
    assert_equal(results, train_plain(2, "adam", kind))


def test_rows_travel_once():
    """Early and late rows together are the rows of the step; one step more is opened than trained."""
    ahead, plain = (run_ranks(f, 2, "row_wise", "sgd", "one_hot", 2, *rest)[0][2] for f, rest in
                    ((train_ahead, ()), (train_sharded, (False,))))  # fmt: skip
    assert ahead["row_gradients"] == plain["row_gradients"]
    assert 0 < ahead["rows"] - plain["rows"] < plain["rows"] / 2


@pytest.mark.parametrize("sharding", ["table_wise", "column_wise"])
def test_control_rows_that_are_not_patched_are_seen(sharding):
    results = run_ranks(train_ahead, 2, sharding, "rowwise_adagrad", "one_hot", 2, "no patch")
    with pytest.raises(AssertionError):
        assert_equal(results, train_plain(2, "rowwise_adagrad", "one_hot"))


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(("sharding", "micro"), [(one, 1 + k % 3) for k, one in enumerate([*TYPES, "mixed"])])
def test_deferred_gradients_give_the_same(sharding, micro, world):
    results = run_ranks(train_ahead, world, sharding, "rowwise_adagrad", "one_hot", micro, "", True)
    assert_equal(results, train_plain(world, "rowwise_adagrad", "one_hot"))


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad"])
def test_deferred_gradients_of_bags(optimizer):
    results = run_ranks(train_ahead, 3, "mixed", optimizer, "weighted", 2, "", True)
    assert_equal(results, train_plain(3, optimizer, "weighted"))


def test_deferred_gradients_travel_once():
    deferred, plain = (run_ranks(train_ahead, 2, "row_wise", "sgd", "one_hot", 2, "", defer)[0][2] for defer in (True, False))
    assert deferred["row_gradients"] == plain["row_gradients"] and deferred["rows"] == plain["rows"]
    assert 0 < deferred["ids"] - plain["ids"] < plain["ids"]


@pytest.mark.parametrize("fault", ["late update", "lost"])
def test_control_deferred_updates_that_come_late_are_seen(fault):
    results = run_ranks(train_ahead, 2, "row_wise", "rowwise_adagrad", "one_hot", 2, fault, True)
    with pytest.raises(AssertionError):
        assert_equal(results, train_plain(2, "rowwise_adagrad", "one_hot"))


def train_in_pieces(rank, world, sharding):
    """Rows and gradients of some ranks only are large."""
    lane.PIECE_BYTES = 256
    tape = Tape()
    with recording(tape):
        found = train_ahead(rank, world, sharding, "rowwise_adagrad", "one_hot", 2)
    names = [call.name for call in tape.calls]
    return *found[:2], (names.count("isend"), found[2])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("sharding", ["row_wise", "mixed"])
def test_large_messages_go_in_pieces(sharding, world):
    """All ranks agree on it, those with little to send too: otherwise some would wait for ever."""
    results = run_ranks(train_in_pieces, world, sharding)
    assert_equal(results, train_plain(world, "rowwise_adagrad", "one_hot"))
    plain = run_ranks(train_ahead, world, sharding, "rowwise_adagrad", "one_hot", 2)
    assert all(sent[0] > STEPS for _, _, sent in results)
    assert [sent[1] for _, _, sent in results] == [sent for _, _, sent in plain]
