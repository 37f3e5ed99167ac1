"""The contract: 50 steps on any number of ranks, any placement, any exchange equal the single-process reference."""

from __future__ import annotations

import pytest

from recpipe.train.setup import Job
from tests.train.jobs import verify

TYPES = ["table_wise", "row_wise", "column_wise", "table_column_wise", "table_row_wise", "grid", "replicated"]
MIX = {f"t_cat_{i}": kind for i, kind in enumerate(["row_wise", "column_wise", "replicated", "table_row_wise", "grid"])}


def assert_same(differences: dict[str, float], tolerance: float) -> None:
    assert set(differences) == {"loss", "dense_weights", "dense_state", "rows", "row_state"}
    beyond = {name: value for name, value in differences.items() if not value <= tolerance}
    assert not beyond, f"beyond {tolerance}: {beyond}"


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_worlds_and_optimizers(world, optimizer):
    assert_same(verify(world, dtype="float64", optimizer__table__name=optimizer, optimizer__table__l2=1e-3), 1e-12)


@pytest.mark.parametrize("sharding", TYPES)
def test_sharding_types(sharding):
    differences = verify(
        4, dtype="float64", tables__sharding=sharding, tables__local_size=2, optimizer__table__name="rowwise_adagrad"
    )
    assert_same(differences, 1e-12)


@pytest.mark.parametrize("model", ["dlrm", "dcn_v2", "deepfm", "wide_deep"])
def test_models_with_a_mix_of_types_microbatches_dropout_and_bags(model):
    differences = verify(
        2, model=model, dtype="float64", tables__per_table=MIX, tables__local_size=2, model__dropout=0.3,
        schedule__microbatches=3, data__mean_ids=2.5, data__multi_hot_features=3, optimizer__dense__name="adagrad",
    )  # fmt: skip
    assert_same(differences, 1e-12)


@pytest.mark.parametrize("exchange", ["window", "pooled"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_float32_and_both_exchanges(exchange, optimizer):
    # Adagrad's first step divides a gradient by its own size: with a tiny eps, one that is only rounding becomes a whole
    # step of random sign, in any implementation. eps=1e-3 keeps the rule well-conditioned, so that 1e-6 measures us.
    differences = verify(
        2, dtype="float32", exchange__kind=exchange, optimizer__table__name=optimizer, optimizer__dense__name="sgd",
        tables__per_table={"t_cat_0": "row_wise", "t_cat_1": "row_wise"}, optimizer__table__eps=1e-3,
    )  # fmt: skip
    assert_same(differences, 1e-6)


def test_pooled_and_window_tables_in_one_model():
    differences = verify(
        4, dtype="float32", exchange__kind="pooled", tables__exchange_per_table={"t_cat_1": "window", "t_cat_4": "window"},
        optimizer__dense__name="sgd", tables__sharding="row_wise", optimizer__table__eps=1e-3,
        data__min_ids=20,
    )  # fmt: skip
    assert_same(differences, 1e-6)


def lose_dense_reduction(job: Job) -> None:
    """Every rank keeps its own gradients."""
    for reducer in job.trainer.updates._reducers.values():
        reducer._lane._group = None


def lose_row_gradients(job: Job) -> None:
    """Rank 1 sends zeros for its row gradients."""
    opened = job.tables.open

    def broken(*args, **kwargs):
        step = opened(*args, **kwargs)
        if job.groups.rank == 1:
            step.add_gradient = lambda microbatch, gradient: None
        return step

    job.tables.open = broken


@pytest.mark.parametrize(("fault", "seen_in"), [(lose_dense_reduction, "dense_weights"), (lose_row_gradients, "rows")])
def test_control_a_lost_reduction_is_seen(fault, seen_in):
    differences = verify(2, fault, dtype="float64")
    assert differences[seen_in] > 1e-4, differences


def update_per_microbatch(job: Job) -> None:
    """Adagrad adds the square of each half of the gradient, as a fused optimizer would that updates a microbatch at a time."""
    optimizer = job.tables.window.store.optimizer
    step = type(optimizer).step

    def twice(self, weight, state, rows, grad, *rest):
        step(self, weight, state, rows, grad / 2, *rest)
        step(self, weight, state, rows, grad / 2, *rest)

    type(optimizer).step = twice


def test_control_an_update_per_microbatch_is_seen():
    assert verify(2, update_per_microbatch, dtype="float64", optimizer__table__name="adagrad")["rows"] > 1e-4
