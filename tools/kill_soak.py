"""Kills a random rank at random moments, resumes, and compares with an undisturbed run: weights must be equal to the bit.

    python tools/kill_soak.py --moments 60 --seed 1
    python tools/kill_soak.py --seed 1 --only 17             # one of them again

A moment is a phase (reading, exchange, forward, backward, update, saving), a call in it and a rank. After each kill no
process may be left and every row must have been trained once. With --folder, what was done there before is not done again:
undisturbed runs, and moments that passed. The table at the end is for docs/checkpoints.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
import torch  # noqa: E402

from tests.train.faults import PHASES, Fault, final_tensors, launch  # noqa: E402

RESUMED, ANEW = "resumed", "began again (no checkpoint yet)"
COMMON = {
    "data__num_train": 258, "batch_size": 16, "epochs": 2, "checkpoint__every_steps": 3, "log__progress": "none",
    "validation_freq_within_epoch": 4, "model__dropout": 0.2,
}  # fmt: skip
SCHEDULES: dict[str, tuple[int, dict[str, Any]]] = {
    "2 replicas": (2, {"batch_size": 8, "tables__sharding": "row_wise"}),
    "2 replicas, pooled": (2, {"batch_size": 8, "exchange__kind": "pooled"}),
    "1f1b, 2 stages": (2, {"mesh__stages": 2}),
    "zb_h1, 2 stages, async": (2, {"mesh__stages": 2, "schedule__name": "zb_h1", "checkpoint__async_save": True}),
    "1 stage, spread": (2, {"schedule__embedding": "spread", "optimizer__table__name": "adam"}),
    "chimera, 2 stages": (2, {"mesh__stages": 2, "schedule__name": "chimera", "optimizer__table__name": "adam"}),
    "2 x 2": (4, {"batch_size": 8, "mesh__stages": 2, "schedule__name": "zb_h1", "tables__sharding": "column_wise"}),
}


def run(world: int, settings: dict[str, Any], *faults: Fault) -> tuple[int, str]:
    """Exit code and output of one run; an error where a process is left over.

    A fork of this process launches, so that it need not import everything again; its workers are new processes.
    """
    with tempfile.TemporaryFile("w+") as output:
        launcher = multiprocessing.get_context("fork").Process(
            target=_launch, args=(output.fileno(), world, settings, *faults)
        )
        launcher.start()
        launcher.join(300)
        assert launcher.exitcode is not None, "still running after 300 s"
        left = [
            one for one in psutil.process_iter(["pid"]) if _session(one.pid) == launcher.pid and one.pid != launcher.pid
        ]
        left = [one for one in psutil.wait_procs(left, timeout=10)[1] if one.status() != psutil.STATUS_ZOMBIE]
        assert not left, f"left over: {left}"
        output.seek(0)
        return launcher.exitcode, output.read()


def _launch(output: int, world: int, settings: dict[str, Any], *faults: Fault) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.exit(launch(world, settings, *faults))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def draw(chooser: random.Random, counts: list[dict[str, int]], phase: str = "") -> Fault:
    """A moment of a run in which rank r is `counts[r][phase]` times in a phase: any phase, any rank, any call.

    Args:
        phase: the phase, if not any.
    """
    phase = phase or chooser.choice(sorted(PHASES))
    rank = chooser.choice([rank for rank, one in enumerate(counts) if one.get(phase)])
    return Fault(rank, phase, chooser.randint(1, counts[rank][phase]))


def strike(folder: Path, world: int, settings: dict[str, Any], fault: Fault, wanted: dict[str, torch.Tensor]) -> str:
    """One kill and one resume; gives what happened, or raises."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = {**settings, "run__dir": str(folder)}
    code, output = run(world, settings, fault)
    assert code == 1 and f"rank {fault.rank} was killed by SIGKILL" in output, output
    begun = (folder / "config.yaml").exists()
    code, output = run(world, {**settings, "resume": "auto"})
    assert code == 0, output
    found = final_tensors(folder)
    assert found.keys() == wanted.keys()
    different = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not different, f"different: {different[:5]}"
    assert json.loads((folder / "summary.json").read_text())["rows"] == 2 * COMMON["data__num_train"]
    return RESUMED if begun and "resuming from" in output else ANEW


def undisturbed(base: Path, name: str) -> tuple[dict[str, torch.Tensor], list[dict[str, int]]]:
    """Tensors at the end of a run that nothing befell, and how often each rank was in each phase."""
    folder, (world, extra) = base / f"plain-{list(SCHEDULES).index(name)}", SCHEDULES[name]
    counts = [folder / f"calls-{rank}" for rank in range(world)]
    if not all(path.exists() for path in counts):
        shutil.rmtree(folder, ignore_errors=True)
        code, output = run(
            world, {**COMMON, **extra, "run__dir": str(folder)}, Fault(-1, "count", 0, mark=f"{folder}/calls-")
        )
        assert code == 0, output
    return final_tensors(folder), [json.loads(path.read_text()) for path in counts]


def pass_moment(base: Path, seed: int, number: int) -> tuple[str, str, str]:
    """Schedule, phase and what happened at a moment; raises where something is wrong."""
    name = list(SCHEDULES)[number % len(SCHEDULES)]
    world, extra = SCHEDULES[name]
    wanted, counts = undisturbed(base, name)
    fault = draw(random.Random(f"{seed} {number}"), counts)
    done, begun = base / f"moment-{seed}-{number}.txt", time.monotonic()
    if not done.exists():
        folder = base / f"struck-{number}"
        happened = strike(folder, world, {**COMMON, **extra}, fault, wanted)
        print(f"{number:3d} {name}: rank {fault.rank}, {fault.phase} call {fault.call} of {counts[fault.rank][fault.phase]}: "
              f"{happened}, {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
        shutil.rmtree(folder)
        done.write_text(happened)
    return name, fault.phase, done.read_text()


def show(results: Counter[tuple[str, str, str]]) -> None:
    """The table: kills that were resumed from a checkpoint + kills before there was one."""
    print(f"| schedule | {' | '.join(PHASES)} |\n|---|{'---|' * len(PHASES)}")
    for name in SCHEDULES:
        cells = [" + ".join(str(results[name, phase, happened]) for happened in (RESUMED, ANEW)) for phase in PHASES]
        print(f"| {name} | {' | '.join(cell.replace('0 + 0', '') for cell in cells)} |")
    print(f"{sum(results.values())} moments, all weights equal to the bit")


def main() -> None:
    """Prints a line a moment and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", type=int, nargs="+", help="numbers of moments, from 0", default=None)
    parser.add_argument("--folder", help="where runs lie, and stay", default=None)
    options = parser.parse_args()
    base = Path(options.folder or tempfile.mkdtemp(prefix="recpipe-soak-"))
    print(f"seed {options.seed}; runs in {base}; they stay there when a moment fails", flush=True)
    results = Counter[tuple[str, str, str]]()
    for number in options.only or range(options.moments):
        results[pass_moment(base, options.seed, number)] += 1
    if options.folder is None:
        shutil.rmtree(base)
    show(results)


if __name__ == "__main__":
    main()
