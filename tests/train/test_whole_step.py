"""Cases 105 and 142: blocks whose result depends on how rows are cut are exact in one piece, and refused in several."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from recpipe.errors import ConfigError
from recpipe.model import StepContext, build_model
from recpipe.model.block import Block
from recpipe.planner.inputs import problem_of
from recpipe.planner.settings import PlannerSettings
from recpipe.planner.statistics import WorkloadSettings
from recpipe.planner.topology import Nodes, Tier, Topology
from recpipe.runtime.program import build_program
from recpipe.schedule.settings import CostSettings, ScheduleSettings
from recpipe.train.config import TrainConfig
from recpipe.train.generators import host_state, seed_generators, set_host_state
from recpipe.train.whole_step import check_couplings, check_settings_of
from tests.model.own_blocks import with_own_block
from tests.model.small import SETTINGS, small_schema
from tests.ranks import run_ranks
from tests.train import resuming
from tests.train.jobs import small_config, verify

NORM = {"model": "dcn_v2", "model__batch_norm": True, "dtype": "float64"}
WHOLE = {"mesh__stages": 2, "schedule__microbatches": 1}


def program(stages=1, lanes=1, name="1f1b", microbatches=1):
    return build_program(ScheduleSettings(name=name, microbatches=microbatches), CostSettings(), stages, lanes)


CUT = [
    ({"lanes": 2}, "2 replicas"),
    ({"microbatches": 3}, "3 microbatches"),
    ({"stages": 2, "microbatches": 2}, "2 microbatches"),
    ({"stages": 2, "name": "chimera", "microbatches": 2}, "2 directions of the pipeline"),
    ({"stages": 2, "lanes": 2}, "2 replicas"),
]


@pytest.mark.parametrize(("shape", "said"), CUT)
def test_batch_norm_is_refused_where_a_step_is_cut(shape, said):
    """Case 105."""
    with pytest.raises(ConfigError, match=f"in {said}: .*schedule.microbatches=1.*model.batch_norm=false"):
        check_settings_of(small_config(2, **NORM), program(**shape))


def test_batch_norm_in_one_piece_is_not_refused():
    check_settings_of(small_config(2, **NORM), program(stages=2))
    check_settings_of(small_config(2, model="dcn_v2"), program(lanes=2, microbatches=3))


@pytest.mark.parametrize(
    ("setting", "said"), [({"batch_size": 1}, "batch_size=2"), ({"guard__non_finite": "skip"}, "guard.non_finite=stop")]
)
def test_batch_norm_is_refused_where_its_statistics_would_be_wrong(setting, said):
    """Case 105: no variance of one row; a step that is left out must not move them."""
    with pytest.raises(ConfigError, match=said):
        check_settings_of(small_config(2, **NORM, **setting), program())


OWN = {
    "torch's batch norm": (lambda width: nn.BatchNorm1d(width), False, "BatchNorm1d, batch normalisation, couples rows"),
    "deep inside": (lambda width: nn.Sequential(nn.Linear(width, width), nn.SyncBatchNorm(width)), False, "SyncBatchNorm"),
    "declared": (lambda width: lambda x: x - x.mean(0), True, "it says that it couples rows"),
    "functional dropout": (lambda width: lambda x: nn.functional.dropout(x, 0.5), False, "draws random numbers"),
    "noise": (lambda width: lambda x: x + torch.rand_like(x), False, "draws random numbers"),
    "alpha dropout": (lambda width: nn.AlphaDropout(0.3), False, "draws random numbers"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_users_block_that_depends_on_the_cut_is_refused(kind, monkeypatch):
    """Cases 105 and 142: declared or not."""
    make, couples, said = OWN[kind]
    with_own_block(monkeypatch, make, couples)
    model, cfg = build_model(SETTINGS["dlrm"], small_schema(), device="meta"), small_config(2)
    assert [one.block for one in model.couplings] == ["own"]
    with pytest.raises(ConfigError, match=f"block own: .*{said}.*2 replicas"):
        check_couplings(model.couplings, cfg, program(lanes=2), 80)
    check_couplings(model.couplings, cfg, program(), 80)


def test_the_refusal_reaches_whoever_builds_a_job(monkeypatch):
    with_own_block(monkeypatch, nn.BatchNorm1d)
    with pytest.raises(Exception, match="ConfigError: block own: BatchNorm1d"):
        verify(1, schedule__microbatches=2)


def test_torchs_own_batch_norm_needs_two_rows_in_the_last_step(monkeypatch):
    """Case 105: it would raise at the end of the first epoch."""
    with_own_block(monkeypatch, nn.BatchNorm1d)
    couplings = build_model(SETTINGS["dlrm"], small_schema(), device="meta").couplings
    with pytest.raises(ConfigError, match=r"81 rows has 1, too few.*drop_last_training_batch=true"):
        check_couplings(couplings, small_config(1), program(), 81)
    check_couplings(couplings, small_config(1, drop_last_training_batch=True), program(), 81)


@pytest.mark.parametrize("name", SETTINGS)
def test_blocks_of_the_shipped_models_do_not_couple_rows(name):
    assert not build_model(SETTINGS[name], small_schema(), device="meta").couplings


def test_the_planner_leaves_the_step_in_one_piece():
    """Case 105: ``plan=auto``."""
    link = Tier(1e-5, 1e9)
    topology = Topology("here", (Nodes(1, 2, 1e9, 1e11, 4e9, 1e10, 3e-6, 1.5e-8),), link, link, "sync", 0.1)
    cfg = small_config(2, TrainConfig, **NORM)
    scope = problem_of(cfg, topology, PlannerSettings(), WorkloadSettings()).scope
    assert (scope.stages, scope.microbatches) == ((2,), (1,))
    with pytest.raises(ConfigError, match=r"planner.stages has to allow 2"):
        problem_of(cfg, topology, PlannerSettings(stages=[1]), WorkloadSettings())


def test_batch_norm_over_two_stages_equals_the_reference():
    """Case 105: running statistics too; the last step of an epoch has four rows."""
    assert max(verify(2, **NORM, **WHOLE, data__num_train=36).values()) <= 1e-12


@pytest.mark.parametrize("settings", [{"schedule__microbatches": 3}, {"mesh__stages": 2, "schedule__name": "zb_h1"}])
def test_a_users_dropout_does_not_depend_on_the_cut(settings, monkeypatch):
    """Case 142: the same ``nn.Dropout`` twice in one forward, over replicas, stages and microbatches."""

    def twice(width):
        drop = nn.Dropout(0.5)
        return nn.Sequential(nn.Linear(width, 12), drop, nn.Linear(12, width), drop)

    with_own_block(monkeypatch, twice)
    assert max(verify(2, dtype="float64", **settings).values()) <= 1e-12


def test_a_users_dropout_drops_in_training_only(monkeypatch):
    """Case 142: each use has a mask, each step others; none outside training."""
    with_own_block(monkeypatch, lambda width: nn.Dropout(0.5, inplace=True))
    model = build_model(SETTINGS["dlrm"], small_schema())
    block = next(block for block in model.blocks if block.name == "own")
    masks = []
    for step in (0, 0, 1):
        block.begin(StepContext(step=step), 50)
        masks += [block.body(torch.ones(50, 20)), block.body(torch.ones(50, 20))]
    assert torch.equal(masks[0], masks[2]) and torch.equal(masks[1], masks[3])
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[4])
    assert 0.45 < float(masks[0].count_nonzero()) / 1000 < 0.55 and float(masks[0].max()) == 2.0
    block.begin(StepContext(training=False), 50)
    assert torch.equal(block.body(torch.ones(50, 20)), torch.ones(50, 20))


def test_a_users_dropout_on_something_else_than_rows_is_refused(monkeypatch):
    """Case 142."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x.t()).t()

    with_own_block(monkeypatch, lambda width: Turned())
    with pytest.raises(ConfigError, match=r"nn.Dropout own/body.drop: .*first dimension is the rows"):
        build_model(SETTINGS["dlrm"], small_schema())


def test_a_block_that_draws_is_exact_in_one_piece(monkeypatch):
    """Case 142: its generator is seeded by step, so two stages equal one process."""
    with_own_block(monkeypatch, lambda width: lambda x: nn.functional.dropout(x, 0.5))
    assert max(verify(2, dtype="float64", **WHOLE).values()) <= 1e-12


def test_weights_of_plain_modules_start_from_the_seed(monkeypatch):
    with_own_block(monkeypatch, lambda width: nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)))
    one, same, other = (build_model(SETTINGS["dlrm"], small_schema(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    name = next(name for name in one if name.endswith("body.0.weight"))
    assert not torch.equal(one[name], other[name]) and one[name.replace("0.weight", "1.weight")].eq(1).all()


def test_weights_that_nothing_fills_are_refused(monkeypatch):
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3))

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.bare = Bare()

        def forward(self, x):
            return x * self.bare.weight.sum()

    with_own_block(monkeypatch, lambda width: Holder())
    with pytest.raises(ConfigError, match=r"block own: body.bare \(Bare\) holds weights, but has neither"):
        build_model(SETTINGS["dlrm"], small_schema())


def draws(rank, world, cfg, stop_at):
    """What a user's code would draw from each generator after each step on this rank."""
    seen = []

    def watch(loop):
        after = loop._after_step

        def draw_then(*args):
            seen.append((torch.rand(1).item(), np.random.randn(), random.gauss(0, 1)))
            return after(*args)

        loop._after_step = draw_then

    resuming.train(rank, world, cfg, stop_at, watch)
    return seen


def test_generators_start_from_the_seed_and_go_on_from_a_checkpoint(tmp_path):
    """Case 142: torch's, numpy's and Python's."""
    whole = small_config(2, run__dir=str(tmp_path / "whole"), data__num_train=130)
    cut = small_config(2, run__dir=str(tmp_path / "cut"), data__num_train=130)
    undisturbed = run_ranks(draws, 2, whole, None)
    begun = run_ranks(draws, 2, cut, 4)
    cut.resume = "auto"
    rest = run_ranks(draws, 2, cut, None)
    assert len(undisturbed[0]) == 9 and len(begun[0]) < 9
    assert [a + b for a, b in zip(begun, rest, strict=True)] == undisturbed
    assert undisturbed[0] != undisturbed[1]


def test_host_state_keeps_a_pending_gauss():
    seed_generators(3, 1)
    np.random.randn(), random.gauss(0, 1)
    state = host_state()
    first = np.random.randn(), random.gauss(0, 1), np.random.rand(), random.random()
    seed_generators(4, 1)
    set_host_state(state)
    assert (np.random.randn(), random.gauss(0, 1), np.random.rand(), random.random()) == first


def test_couples_rows_is_off_unless_said():
    assert not Block.couples_rows and not Block.draws
