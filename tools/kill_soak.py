"""Kills a random rank at random moments, resumes, and compares with an undisturbed run: weights must be equal to the bit.

    python tools/kill_soak.py --moments 60 --seed 1

A moment is a phase (reading, exchange, forward, backward, update, saving), a call in it and a rank. After each kill no
process may be left and every row must have been trained once. The table at the end is for docs/checkpoints.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
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

from tests.train.faults import PHASES, Fault, arguments, final_tensors  # noqa: E402

COMMON = {
    "data__num_train": 258, "batch_size": 16, "epochs": 2, "checkpoint__every_steps": 3, "log__progress": "none",
    "validation_freq_within_epoch": 4, "model__dropout": 0.2,
}  # fmt: skip
SCHEDULES: dict[str, tuple[int, dict[str, Any]]] = {
    "2 replicas": (2, {"batch_size": 8, "tables__sharding": "row_wise"}),
    "2 replicas, pooled": (2, {"batch_size": 8, "exchange__kind": "pooled"}),
    "1f1b, 2 stages": (2, {"mesh__stages": 2}),
    "zb_h1, 2 stages, async": (2, {"mesh__stages": 2, "schedule__name": "zb_h1", "checkpoint__async_save": True}),
    "chimera, 2 stages": (2, {"mesh__stages": 2, "schedule__name": "chimera", "optimizer__table__name": "adam"}),
    "2 x 2": (4, {"batch_size": 8, "mesh__stages": 2, "schedule__name": "zb_h1", "tables__sharding": "column_wise"}),
}


def run(world: int, settings: dict[str, Any], fault: Fault | None = None) -> tuple[int, str]:
    """Exit code and output of one run; an error where a process is left over."""
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    process = subprocess.Popen(
        arguments(world, settings, fault), cwd=ROOT, env={**clean, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    output = process.communicate(timeout=300)[0]
    left = [one for one in psutil.process_iter(["pid"]) if _session(one.pid) == process.pid and one.pid != process.pid]
    left = [one for one in psutil.wait_procs(left, timeout=10)[1] if one.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"left over: {left}"
    return process.returncode, output


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def draw(chooser: random.Random, world: int) -> Fault:
    """A moment."""
    phase = chooser.choice(sorted(PHASES))
    if phase == "publishing":
        return Fault(0, phase, chooser.randint(1, 8))
    return Fault(chooser.randrange(world), phase, chooser.randint(1, 40 if phase == "saving" else 60))


def strike(folder: Path, world: int, settings: dict[str, Any], fault: Fault, wanted: dict[str, torch.Tensor]) -> str:
    """One kill and one resume; gives what happened, or raises."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = {**settings, "run__dir": str(folder)}
    code, output = run(world, settings, fault)
    if code == 0:
        return "never got there"
    assert code == 1 and f"rank {fault.rank} was killed by SIGKILL" in output, output
    begun = (folder / "config.yaml").exists()
    code, output = run(world, {**settings, "resume": "auto"})
    assert code == 0, output
    found = final_tensors(folder)
    assert found.keys() == wanted.keys()
    different = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not different, f"different: {different[:5]}"
    assert json.loads((folder / "summary.json").read_text())["rows"] == 2 * COMMON["data__num_train"]
    return "resumed" if begun and "resuming from" in output else "began again (no checkpoint yet)"


def main() -> None:
    """Prints a line a moment and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chooser, results = random.Random(options.seed), Counter[tuple[str, str, str]]()
    base = tempfile.mkdtemp(prefix="recpipe-soak-")
    print(f"runs in {base}; they stay there when a moment fails", flush=True)
    plain: dict[str, dict[str, torch.Tensor]] = {}
    for number in range(options.moments):
        name = list(SCHEDULES)[number % len(SCHEDULES)]
        world, extra = SCHEDULES[name]
        settings = {**COMMON, **extra}
        if name not in plain:
            folder = Path(base) / f"plain-{number}"
            code, output = run(world, {**settings, "run__dir": str(folder)})
            assert code == 0, output
            plain[name] = final_tensors(folder)
        fault, begun = draw(chooser, world), time.monotonic()
        happened = strike(Path(base) / "struck", world, settings, fault, plain[name])
        results[name, fault.phase, happened] += 1
        print(f"{number:3d} {name}: rank {fault.rank}, {fault.phase} call {fault.call}: {happened}, "
              f"{time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
    shutil.rmtree(base)
    print("| schedule | phase | what happened | times |\n|---|---|---|---|")
    for (name, phase, happened), count in sorted(results.items()):
        print(f"| {name} | {phase} | {happened} | {count} |")
    print(f"{sum(results.values())} moments, all weights equal to the bit")


if __name__ == "__main__":
    main()
