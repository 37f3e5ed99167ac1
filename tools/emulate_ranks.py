"""The bubble of the real executor beside the formula, on ranks that sleep instead of computing.

    python -m tools.emulate_ranks [--ranks 4 8] [--unit 0.06]

Each rank is a process with gloo messages; stages sleep F = I = W = one unit (Chimera, whose formula is for F = B: one unit
each). One step at a time, from a barrier to the end of the last rank: the flush that the formulas speak of.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from recpipe.batch import Batch
from recpipe.comm import Channels, Groups, Traffic
from recpipe.runtime.emulated import EmulatedStage, EmulatedTables, EmulatedUpdates
from recpipe.runtime.executor import Executor
from recpipe.runtime.order import step_order
from recpipe.runtime.place import Place
from recpipe.runtime.program import build_program
from recpipe.schedule.ir import Program
from recpipe.schedule.settings import CostSettings, ScheduleSettings

ROWS, ROW_NUMEL, STEPS = 16, 64, 5


@dataclass(frozen=True)
class Case:
    """One line of the table: a family, ranks and microbatches, times of F, I and W in units, and the bubble by formula."""

    family: str
    ranks: int
    microbatches: int
    times: tuple[float, float, float]
    formula: float


def cases(ranks: int) -> list[Case]:
    """1F1B, ZB-H1 and ZBV with F = I = W, Chimera with F = B, each with the flush bubble of docs and papers."""
    p, many = ranks, 2 * ranks
    work = 3 * many
    zbv = (p - 1) / 2
    chimera = p - 2  # slots of F = B at M = p
    return [
        Case("1f1b", p, many, (1, 1, 1), 3 * (p - 1) / (work + 3 * (p - 1))),
        Case("zb_h1", p, many, (1, 1, 1), (p - 1) / (work + (p - 1))),
        Case("zbv", p, many, (1, 1, 1), zbv / (work + zbv)),
        Case("chimera", p, p, (1, 0.5, 0.5), chimera / (2 * p + chimera)),
    ]


def program_of(case: Case) -> Program:
    """The program without tables."""
    settings = ScheduleSettings(name=case.family, microbatches=case.microbatches, embedding="none")
    return build_program(settings, CostSettings(), case.ranks, 1)


def run(rank: int, folder: str, case: Case, unit: float) -> None:
    """One rank; rank 0 writes the seconds of each step."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", case.ranks), rank=rank, world_size=case.ranks)
    groups, program = Groups.create(), program_of(case)
    place, stages = Place(program.placement, 1, rank), program.placement.num_stages
    seconds = [t * unit * program.placement.chunk for t in case.times]
    executor = Executor(
        step_order(program, rank), place, EmulatedTables(groups),  # type: ignore[arg-type]
        {s: EmulatedStage(s, stages, *seconds, row_numel=ROW_NUMEL) for s in place.stages},  # type: ignore
        Channels.create(rank, Traffic()), EmulatedUpdates(), 0,
    )  # fmt: skip
    rows = ROWS if place.consumer is not None else 0
    batch = Batch(torch.zeros(rows, 1), torch.zeros(rows).long(), torch.ones(rows).int(), torch.zeros(rows), one_hot=True)
    spans = []
    for _ in range(STEPS):
        groups.barrier()
        start = time.perf_counter()
        for _ in executor.run(iter([replace(batch)])):
            pass
        ends = groups.gather_cpu(torch.tensor([time.perf_counter()], dtype=torch.float64))
        starts = groups.gather_cpu(torch.tensor([start], dtype=torch.float64))
        spans.append(float(ends.max() - starts.min()))
    if rank == 0:
        torch.save(spans, f"{folder}/spans.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure(case: Case, unit: float) -> float:
    """Measured bubble: share of the flush that a rank does not work, median over steps."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run, (folder, case, unit), nprocs=case.ranks, start_method="fork")
        spans = torch.load(f"{folder}/spans.pt")
    work = sum(case.times) * unit * case.microbatches
    return 1 - work / median(spans[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--unit", type=float, default=0.06, help="seconds of F")
    arguments = parser.parse_args()
    print("| schedule | ranks | microbatches | bubble, formula | bubble, measured | points apart |\n|---|---|---|---|---|---|")
    for case in [one for ranks in arguments.ranks for one in cases(ranks)]:
        found = measure(case, arguments.unit)
        apart = 100 * (found - case.formula)
        cells = [case.family, case.ranks, case.microbatches, f"{case.formula:.1%}", f"{found:.1%}", f"{apart:+.1f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
