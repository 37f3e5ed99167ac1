"""Pipelines against the single-process reference: every synchronous family, meshes, models, uneven microbatches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from recpipe.comm import Groups
from recpipe.embedding.early import TouchedRows
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.setup import Job, build_job
from tests.ranks import run_ranks
from tests.train.jobs import small_config, verify
from tests.train.test_parity import update_per_microbatch

F64 = {"dtype": "float64", "optimizer__table__name": "rowwise_adagrad", "launch__threads": 1}
FAMILIES = [
    "gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb", "zbv", "chimera", "dualpipe",
    "dualpipev", "cyclic", "greedy", "auto",
]  # fmt: skip
DEEP = {"model__over_arch_layer_sizes": [16, 12, 12, 8, 8, 8, 1]}


def assert_same(differences, tolerance=1e-12):
    assert max(differences.values()) <= tolerance, differences


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_two_stages(family):
    assert_same(verify(2, **F64, **DEEP, schedule__name=family, mesh__stages=2))


@pytest.mark.parametrize("family", ["1f1b", "interleaved", "zb_h1", "zbv", "chimera", "dualpipe"])
def test_families_on_four_stages(family):
    assert_same(verify(4, **F64, **DEEP, schedule__name=family, mesh__stages=4, schedule__chunks=2))


@pytest.mark.parametrize("family", ["1f1b", "zb_h1", "chimera", "dualpipe"])
def test_families_on_two_replicas_of_two_stages(family):
    assert_same(verify(4, **F64, **DEEP, schedule__name=family, mesh__stages=2))


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise", "table_row_wise", "grid", "replicated"])
def test_sharding_types(sharding):
    assert_same(verify(
        4, **F64, schedule__name="zb_h1", mesh__stages=2, tables__sharding=sharding, tables__local_size=2,
    ))  # fmt: skip


@pytest.mark.parametrize("model", ["dlrm", "dcn_v2", "deepfm", "wide_deep", "wukong", "feature_transformer"])
@pytest.mark.parametrize("family", ["1f1b", "zbv"])
def test_models(model, family):
    of_its_own = {"model__dense_arch_layer_sizes": [16, 8]} if model == "wukong" else {}
    # The gradient of an attention's key bias is zero but for rounding: a tiny eps makes a whole step of it.
    assert_same(verify(
        2, **F64, **of_its_own, model=model, schedule__name=family, mesh__stages=2, data__mean_ids=2.5,
        model__dropout=0.3, data__multi_hot_features=3, optimizer__dense__name="adagrad", optimizer__dense__eps=1e-3,
    ))  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_table_optimizers(optimizer):
    assert_same(verify(2, dtype="float64", optimizer__table__name=optimizer, mesh__stages=2, optimizer__table__l2=1e-3))


@pytest.mark.parametrize("embedding", ["step", "route", "ahead", "spread"])
@pytest.mark.parametrize("microbatches", [3, 12])
def test_depths_and_microbatches_that_do_not_divide_the_rows_or_outnumber_them(embedding, microbatches):
    assert_same(verify(
        2, **F64, schedule__name="zb_h1", mesh__stages=2, schedule__embedding=embedding,
        schedule__microbatches=microbatches,
    ))  # fmt: skip


def test_float32_with_the_pooled_exchange():
    differences = verify(
        2, dtype="float32", exchange__kind="pooled", optimizer__table__name="adagrad", optimizer__dense__name="sgd",
        optimizer__table__eps=1e-3, mesh__stages=2, data__min_ids=20,
    )  # fmt: skip
    assert_same(differences, 1e-6)


@pytest.mark.parametrize(("world", "stages", "family"), [(2, 1, "1f1b"), (2, 2, "chimera"), (4, 2, "1f1b")])
def test_every_rank_reads_a_part_and_hands_it_on(world, stages, family):
    assert_same(verify(
        world, **F64, mesh__feed="everyone", mesh__stages=stages, schedule__name=family, data__mean_ids=2.5,
        data__multi_hot_features=3,
    ))  # fmt: skip


def test_stages_cut_by_name():
    assert_same(verify(2, **F64, model="dcn_v2", mesh__stages=2, mesh__cuts=["cross_1"]))


def force_overlap(share: float, job: Job) -> None:
    """Consecutive steps touch the same ids in this share of the features, and no common id in the others."""
    plain, rows_per_step = job.dataset.batch, job.cfg.batch_size * job.mesh.replicas
    num_ids = [feature.num_ids for feature in job.dataset.schema.features]

    def batch(split, epoch, start, stop):
        found = plain(split, epoch, start, stop)
        if not found.num_rows:
            return found
        parity_B = torch.arange(start, stop) // rows_per_step % 2
        ids = found.ids_N.view(len(num_ids), -1).clone()
        for f, n in enumerate(num_ids):
            ids[f] = ids[f] % 2 if f < share * len(num_ids) else ids[f] % (n // 2) * 2 + parity_B
        return replace(found, ids_N=ids.flatten())

    job.dataset.batch = batch


@pytest.mark.parametrize("embedding", ["ahead", "spread"])
@pytest.mark.parametrize(("share", "stages"), [(0.0, 2), (0.5, 2), (1.0, 2), (0.5, 1)])
def test_ahead_of_time_whatever_consecutive_steps_have_in_common(embedding, share, stages):
    assert_same(verify(
        2, partial(force_overlap, share), **F64, mesh__stages=stages, data__min_ids=4, tables__sharding="row_wise",
        schedule__embedding=embedding,
    ))  # fmt: skip


def send_all_rows_early(job: Job) -> None:
    """No patch: rows that the step before touches travel early, too."""
    force_overlap(0.5, job)
    TouchedRows.untouched = lambda self, rows_Q, *rest: torch.ones(rows_Q.numel(), dtype=torch.bool)


def write_back_late(job: Job) -> None:
    """Each update waits until the next step has looked its rows up."""
    opened, waiting = job.tables.open, []

    def late(*args, **kwargs):
        step = opened(*args, **kwargs)
        lookup, update = step.lookup, step.update

        def look_up_first(lr):
            lookup(lr)
            while waiting:
                waiting.pop()()

        step.lookup, step.update = look_up_first, lambda number: waiting.append(partial(update, number))
        return step

    job.tables.open = late


def defer_all_gradients(job: Job) -> None:
    """Those of rows that the next step reads, too."""
    force_overlap(0.5, job)
    opened, whole = TouchedRows.untouched, []

    def untouched(self, rows_Q, *rest):
        whole.append(rows_Q)
        found = opened(self, rows_Q, *rest)
        return found if len(whole) % 2 else torch.ones_like(found)

    TouchedRows.untouched = untouched


def lose_deferred_updates(job: Job) -> None:
    job.tables.settle = lambda: None


def lose_a_reduction(job: Job) -> None:
    """The copies of stage 1 keep their own gradients."""
    for stage, reducer in job.trainer.updates._reducers.items():
        if stage == 1:
            reducer._lane._group = None


@pytest.mark.parametrize(
    ("fault", "seen_in", "settings"),
    [
        (send_all_rows_early, "rows", {"mesh__stages": 2, "data__min_ids": 4}),
        (write_back_late, "rows", {"mesh__stages": 2}),
        (defer_all_gradients, "rows", {"data__min_ids": 4, "schedule__embedding": "spread"}),
        (lose_deferred_updates, "rows", {"data__min_ids": 4, "schedule__embedding": "spread"}),
        (lose_a_reduction, "dense_weights", {"mesh__stages": 2, "schedule__name": "chimera"}),
        (lose_a_reduction, "dense_weights", {"mesh__stages": 2, "schedule__name": "dualpipe"}),
        (update_per_microbatch, "rows", {"mesh__stages": 2, "optimizer__table__name": "adagrad"}),
    ],
)
def test_controls(fault, seen_in, settings):
    assert verify(2, fault, **{**F64, **settings})[seen_in] > 1e-5


def weights_after_each_step(rank, world, cfg):
    job = build_job(cfg, Groups.create())
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas, parts=2)
    batches = (job.dataset.batch("train", 0, *share) for share in feed.shares(job.place.consumer))
    stages = job.trainer.executor._stages
    return [
        {stage: torch.cat([w.detach().flatten() for w in part.weights]).clone() for stage, part in stages.items()}
        for _ in job.trainer.run(batches)
    ]


@pytest.mark.parametrize("family", ["chimera", "dualpipe"])
def test_both_copies_of_a_stage_are_equal_bit_for_bit_after_each_step(family):
    cfg = small_config(2, TrainConfig, schedule__name=family, mesh__stages=2)
    down, up = run_ranks(weights_after_each_step, 2, cfg)
    assert len(down) == 9
    assert not torch.equal(down[0][0], down[-1][0])
    for mine, other in zip(down, up, strict=True):
        assert mine.keys() == other.keys() == {0, 1}
        assert all(torch.equal(mine[stage], other[stage]) for stage in (0, 1))


@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_messages_between_stages_have_the_compute_dtype(wire):
    """Rows in 32 bits beside a tower in 16: what stage 0 sends has the size that stage 1 expects."""
    assert_same(verify(
        3, dtype="float32", compute_dtype="bfloat16", exchange__wire_dtype=wire, mesh__stages=3, **DEEP,
        optimizer__table__name="sgd", optimizer__dense__name="sgd",
    ), 5e-2)  # fmt: skip
