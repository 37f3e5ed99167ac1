"""An error in any op of a schedule says which action it was. That all ranks then leave: `python -m tools.fault_matrix`."""

from __future__ import annotations

from typing import Any

import pytest

from recpipe.comm import Groups
from recpipe.schedule.ir import Op
from recpipe.train.config import TrainConfig
from recpipe.train.feed import Feed
from recpipe.train.reading import read_batches
from recpipe.train.setup import build_job
from tests.ranks import run_ranks
from tests.train.faults import Fault, plant
from tests.train.jobs import small_config

# Where an op is only on one of the two ranks: the first stage has no SG, the last no SA.
RANK = {Op.SA: 0, Op.RG: 0}


def train(rank: int, world: int, cfg: Any, fault: Fault) -> str:
    """Raises what an error was noted with; the other rank is ended by whoever started both."""
    job = build_job(cfg, Groups.create())
    plant(fault, rank)
    feed = Feed(job.dataset.num_rows("train"), cfg.batch_size, job.mesh.replicas)
    try:
        for _ in job.trainer.run(read_batches(job, feed, 0)):
            pass
    except ZeroDivisionError as error:
        raise RuntimeError(f"told: {error.__notes__}") from None  # type: ignore[attr-defined]
    return ""


@pytest.mark.parametrize("op", list(Op))
def test_an_error_says_in_which_action(op):
    family = "chimera" if op in (Op.B, Op.R) else "zb_h1"
    cfg = small_config(
        2, TrainConfig, mesh__stages=2, schedule__name=family, schedule__microbatches=4, schedule__embedding="spread"
    )
    with pytest.raises(Exception, match=rf"told: \['while it ran {op.value}\d.* of step \d+'\]"):
        run_ranks(train, 2, cfg, Fault(RANK.get(op, 1), op.value, 2, "raise"))


@pytest.mark.parametrize(("op", "around"), [(Op.EG, Op.B), (Op.PO, Op.F)])
def test_an_error_in_what_leaves_inside_names_both(op, around):
    # It comes by twice a step: inside, and in its own turn, which finds it done.
    cfg = small_config(2, TrainConfig, schedule__microbatches=1)
    with pytest.raises(Exception, match=rf"told: \['while it ran {op.value}0.* of step \d+', 'while it ran {around.value}0\.0"):
        run_ranks(train, 2, cfg, Fault(1, op.value, 3, "raise"))
