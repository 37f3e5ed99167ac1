"""Exchanges that do not wait for the end of the forward or backward before them: which, when, and once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from recpipe.comm import Groups, Traffic
from recpipe.comm.traffic import Message
from recpipe.model import StepContext, build_model
from recpipe.runtime.order import step_order
from recpipe.runtime.recorder import Recorder
from recpipe.runtime.stage import Stage
from recpipe.schedule.ir import Action, Op
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.reading import read_batches
from recpipe.train.setup import build_job
from recpipe.train.trace import start_trace
from tests.model.small import SETTINGS, small_rows, small_schema
from tests.ranks import run_ranks
from tests.runtime.test_order import program
from tests.train.jobs import small_config

ROWS = 4


def inside(**settings):
    return {str(Action(key[0], key[2], key[3], key[1])): [str(a) for a in found] for key, found in
            step_order(program(**settings), 0).inside(1).items() if found}  # fmt: skip


def test_what_may_leave_inside():
    assert inside(stages=1) == {"F0.0": ["1:PL0", "1:PO0"], "B0.0": ["EG0.0"]}
    two = inside(stages=1, microbatches=2)
    assert two == {"F0.0": ["1:PL0", "1:PO0"], "B0.0": ["EG0.0"], "B0.1": ["EG0.1"]}
    assert inside(stages=1, embedding="route") == {"B0.0": ["EG0.0"]}
    # A message to the next stage comes first, and the half of a backward has nothing to come after the rows.
    assert inside(stages=2, microbatches=2) == {"B0.0": ["EG0.0"], "B0.1": ["EG0.1"]}
    assert inside(stages=1, name="zb_h1") == {"F0.0": ["1:PL0", "1:PO0"]}


@pytest.fixture
def stage():
    model = build_model(SETTINGS["dlrm"], small_schema(), seed=5, dtype=torch.float64)
    dense_BD, rows_BFD = small_rows(model, ROWS)
    return Stage(model, range(len(model.blocks))), dense_BD, rows_BFD.detach()


def test_rows_are_asked_for_behind_the_bottom_tower(stage):
    whole, dense_BD, rows_BFD = stage
    ran = []
    for block in whole.blocks:
        block.register_forward_hook(lambda block, *_: ran.append(block.name))

    def rows():
        ran.append("rows")
        return rows_BFD.clone()

    labels_B = torch.ones(ROWS, dtype=torch.float64)
    kept = whole.forward_first(dense_BD, rows, labels_B, StepContext(), ROWS)
    expected = next(k for k, block in enumerate(whole.blocks) if "rows_BFD" in block.inputs)
    assert ran.index("rows") == expected > 0 and ran.count("rows") == 1
    named = {"dense_BD": dense_BD, "rows_BFD": rows_BFD, "labels_B": labels_B}
    assert torch.equal(whole.forward(rows_BFD, named, StepContext(), ROWS).output, kept.output)


def test_row_gradients_are_there_before_those_of_the_bottom_tower(stage):
    whole, dense_BD, rows_BFD = stage
    bottom, top = whole.blocks[0].affine.weight, whole.blocks[-1].affine.weight
    found = []

    def ready(grad_BFD):
        assert bottom.grad is None and top.grad is not None
        found.append(grad_BFD)

    kept = whole.forward_first(dense_BD, rows_BFD.clone, torch.ones(ROWS, dtype=torch.float64), StepContext(), ROWS)
    whole.backward(kept, None, ready)
    assert len(found) == 1 and found[0].abs().sum() > 0 and bottom.grad is not None and kept.leaf.grad is None


def test_rows_that_nothing_reads_have_a_gradient_of_zeros(stage):
    whole, dense_BD, rows_BFD = stage
    kept = whole.forward_first(dense_BD, rows_BFD.clone, torch.ones(ROWS, dtype=torch.float64), StepContext(), ROWS)
    kept.leaf = rows_BFD.clone().requires_grad_()
    found = []
    whole.backward(kept, None, found.append)
    assert len(found) == 1 and torch.equal(found[0], torch.zeros_like(rows_BFD))


def recorded(rank, world, cfg):
    job = build_job(cfg, Groups.create())
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas)
    recorder = start_trace(job, feed.num_steps)
    for _ in job.trainer.run(read_batches(job, feed, 0)):
        pass
    return [(str(e.action), e.start, e.end) for e in recorder.events()], [str(a) for a, _ in recorder.sent()]


def test_they_leave_inside_and_once():
    events, sent = run_ranks(recorded, 2, small_config(2, TrainConfig, trace__steps=[1, 4], schedule__microbatches=1))[0]
    times = {name: (start, end) for name, start, end in events}
    for name, around in (("2:PO0", "1:F0.0"), ("1:EG0.0", "1:B0.0")):
        assert times[around][0] < times[name][0] < times[around][1]
        assert sent.count(name) == 1
    assert {op for op in Op if f"1:{op}0.0" in sent} == {Op.EO, Op.EG}


def test_what_holds_up_an_exchange_inside_holds_up_the_forward():
    traffic, place = Traffic(), SimpleNamespace(rank=0, lane=0)
    recorder = Recorder(traffic, place, 0, 1)
    forward, send = Action(Op.F, 0, 0), Action(Op.PO, 0, step=1)
    recorder.enter(forward)
    recorder.enter(send, forward)
    traffic.messages.append(Message("ids", 1, Action(Op.ED, 0), 0.0, 5.0, [(traffic.label, 2.0, 5.0)]))
    recorder.ran(forward, 1.0, 9.0)
    recorder.ran(send, 9.0, 9.0)
    assert recorder.worked() == [(forward, 5000.0), (send, 0.0)]
