"""Independent oracle: torch's own pipeline runtime executes our programs and must give the unpipelined gradients."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from recpipe.errors import ScheduleError
from recpipe.schedule.assemble import assemble, complete
from recpipe.schedule.export import torch_csv
from recpipe.schedule.families import FAMILIES
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Op, Program
from recpipe.schedule.search import best_order
from tests.ranks import run_ranks

RANKS, MICROBATCHES, ROWS, WIDTH = 3, 6, 4, 5
SINGLE = tuple(name for name in FAMILIES if name not in ("chimera", "dualpipe", "cyclic"))
LINEAR = ("gpipe", "1f1b", "zb_h1", "zb_h2", "greedy")


def programs() -> dict[str, Program]:
    """Every family with one replica, and the searched order of a small case."""
    made = {name: assemble(name, Request(RANKS, MICROBATCHES)) for name in SINGLE}
    small = Request(RANKS, 3)
    return {**made, "searched": complete(best_order(small, [0.0] * RANKS), small)}


def tower(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(num_stages)]


def batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    size = (microbatches * ROWS, WIDTH)
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((out - target) ** 2).mean()


def expected(num_stages: int, microbatches: int) -> list[list[torch.Tensor]]:
    stages = tower(num_stages)
    x, target = batch(microbatches)
    loss(nn.Sequential(*stages)(x), target).backward()
    return [[p.grad for p in stage.parameters() if p.grad is not None] for stage in stages]


def run_one(rank: int, program: Program, file: str, form: str) -> dict[int, list[torch.Tensor]]:
    """Run one CSV on this rank and return the gradients of its stages."""
    total = program.placement.num_stages
    mine = [s for _, s in program.placement.slots[rank]]
    modules = {s: copy.deepcopy(tower(total)[s]) for s in mine}
    x, target = batch(program.microbatches)
    stages = [PipelineStage(modules[s], s, total, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, program.microbatches, loss_fn=loss)
    runtime._load_csv(file, format=form)
    runtime.step(*([x] if 0 in mine else []), **({"target": target} if total - 1 in mine else {}))
    return {s: [p.grad for p in modules[s].parameters() if p.grad is not None] for s in mine}


def run_all(rank: int, world: int, jobs: list[tuple[str, Program, str, str]]) -> dict[str, dict[int, list[torch.Tensor]]]:
    return {name: run_one(rank, program, file, form) for name, program, file, form in jobs}


def test_every_single_replica_family(tmp_path: Path) -> None:
    """Orders as ours with torch's messages, and for one stage a rank also with our messages."""
    jobs = []
    for name, program in programs().items():
        for form in ("compute_only", "compute_comms") if name in (*LINEAR, "searched") else ("compute_only",):
            file = tmp_path / f"{name}.{form}.csv"
            file.write_text(torch_csv(program, messages=form == "compute_comms"))
            jobs.append((f"{name} {form}", program, str(file), form))
    results = run_ranks(run_all, RANKS, jobs)
    for name, program, _, _ in jobs:
        reference = expected(program.placement.num_stages, program.microbatches)
        found = {stage: grads for result in results for stage, grads in result[name].items()}
        assert sorted(found) == list(range(program.placement.num_stages))
        for stage, gradients in found.items():
            assert len(gradients) == len(reference[stage]) == 2
            for one, other in zip(gradients, reference[stage], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, msg=f"{name} stage {stage}")


def test_a_lost_weight_half_is_refused(tmp_path: Path) -> None:
    """The negative control: the oracle reads our program, and says no to one without one W."""
    made = programs()["zb_h1"]
    lost = made.with_orders([[a for a in order if (a.op, a.microbatch) != (Op.W, 2)] for order in made.orders])
    file = tmp_path / "lost.csv"
    file.write_text(torch_csv(lost))
    with pytest.raises(mp.ProcessRaisedException, match="I and W must have equal counts"):
        run_ranks(run_all, RANKS, [("lost", lost, str(file), "compute_only")])


def test_two_replicas_are_refused() -> None:
    with pytest.raises(ScheduleError, match="chimera has 2 replicas; torch's runtime runs one"):
        torch_csv(assemble("chimera", Request(4, 8)))
