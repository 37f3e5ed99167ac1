"""How building, checking and simulating scale: 1F1B with tables one step ahead, from one pipeline to 1,536 ranks.

    python -m tools.schedule_scale            # the table of docs/schedules.md
    python -m tools.schedule_scale --full     # and 1,536 ranks with every lane written out

Each row runs in a process of its own, so that memory is its own. Seconds are CPU seconds of that one process.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import time
from dataclasses import dataclass

from recpipe.schedule.assemble import assemble
from recpipe.schedule.check import check
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families.base import Request
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.passes.lanes import expand
from recpipe.schedule.simulate import simulate

COST = Cost(
    weight_bytes=1, row_bytes=4, lookup=1, update=1, optimizer=0.5, far=Link(0.02, 10), near=Link(0.01, 100), ranks_per_node=8
)


@dataclass(frozen=True)
class Size:
    """One row: `folded` keeps identical lanes as one."""

    stages: int
    microbatches: int
    steps: int
    lanes: int = 1
    folded: bool = True
    mode: str = "ahead"


HEADER = (
    *("stages x lanes", "M", "steps", "tables", "lanes", "ranks", "actions handled"),
    *("build s", "check s", "simulate s", "us an action", "peak MiB", "makespan"),
)
CURVE = [Size(16, 64, 1, mode="none"), *(Size(16, 64, 3, lanes, False) for lanes in (1, 2, 4, 8)), Size(16, 64, 3, 96)]
SHAPES = [Size(16, 16, 1), Size(16, 64, 1), Size(16, 256, 1), Size(64, 64, 1)]


def measure(size: Size) -> tuple[int, int, float, float, float, float, float]:
    """Ranks, actions handled, seconds to build, check and simulate, peak MiB of the process, makespan."""
    gc.disable()  # nothing here is cyclic, and the collector would walk millions of tuples again and again
    marks = [time.process_time()]
    program = assemble(
        "1f1b", Request(size.stages, size.microbatches), Exchange(size.mode), size.steps, size.lanes
    )
    program = program if size.folded else expand(program)
    marks.append(time.process_time())
    check(program)
    marks.append(time.process_time())
    makespan = simulate(program, COST).makespan
    marks.append(time.process_time())
    build, checked, simulated = (after - before for before, after in zip(marks, marks[1:], strict=False))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return program.num_ranks, sum(map(len, program.orders)), build, checked, simulated, peak, makespan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true", help="also 1,536 ranks with every lane written out")
    sizes = [*CURVE, *SHAPES, *([Size(16, 64, 3, 96, False)] if parser.parse_args().full else [])]
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    context = multiprocessing.get_context("spawn")
    for size in sizes:
        with context.Pool(1) as pool:
            ranks, actions, *seconds, peak, makespan = pool.apply(measure, (size,))
        each = sum(seconds) / actions * 1e6
        times = " | ".join(f"{one:.2f}" for one in seconds)
        form = "folded" if size.folded else "written out"
        print(
            f"| {size.stages} x {size.lanes} | {size.microbatches} | {size.steps} | {size.mode} | {form} | {ranks:,} "
            f"| {actions:,} | {times} | {each:.1f} | {peak:.0f} | {makespan:g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
