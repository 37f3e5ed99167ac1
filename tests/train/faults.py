"""Faults that strike one rank in one phase of a run: killed, stopped, hanging, raising; and the program that plants them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from recpipe.cli.failure import guarded
from recpipe.data import Dataset
from recpipe.embedding.tables import TablesStep
from recpipe.runtime.executor import Executor
from recpipe.runtime.stage import Stage
from recpipe.schedule.ir import Action, Op
from recpipe.train import checkpoint_storage
from recpipe.train.checkpoint_file import TensorFile
from recpipe.train.checkpoint_storage import read_index
from recpipe.train.launch import launch_workers
from recpipe.train.logs import log_plainly
from recpipe.train.trainer import DenseUpdates
from recpipe.train.work import train
from tests.train.jobs import small_config

# Phase -> what a rank calls in it. The last two are inside a save: while values are written, and before the new name.
PHASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "read": (Dataset, ("batch",)),
    "exchange": (TablesStep, ("request", "send_rows", "send_gradients")),
    "forward": (Stage, ("forward",)),
    "backward": (Stage, ("backward", "backward_input", "backward_weights")),
    "update": (DenseUpdates, ("optimize",)),
    "row_update": (TablesStep, ("update",)),
    "saving": (checkpoint_storage, ("row_blocks",)),
    "publishing": (checkpoint_storage, ("publish",)),
}


@dataclass(frozen=True)
class Fault:
    """What strikes.

    Args:
        rank: whom; -1: the first one that gets there.
        phase: one of `PHASES`, or an op of the schedule.
        call: number of the call in that phase, from 1.
        kind: kill, stop, hang, raise or disk.
        mark: file that is there once the fault has struck, so that it strikes once.

    With the phase ``count`` nothing strikes: each rank writes how often it was in each phase to `mark` and its number.
    """

    rank: int
    phase: str
    call: int
    kind: str = "kill"
    mark: str = ""

    def strike(self) -> None:
        """Does it to this process."""
        if self.mark:
            if Path(self.mark).exists():
                return
            Path(self.mark).touch()
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "raise":
            raise ZeroDivisionError("planted")
        elif self.kind == "disk":
            raise OSError(28, "No space left on device")
        else:
            time.sleep(10_000)


def plant(fault: Fault, rank: int) -> None:
    """Makes `fault` strike in this process, if it is its rank."""
    if fault.rank not in (rank, -1) or fault.phase == "count":
        return
    if fault.phase in Op.__members__:
        plant_in_op(fault)
        return
    calls = 0

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == fault.call:
            fault.strike()

    before_each(fault.phase, called)


def before_each(phase: str, called: Callable[[], None]) -> None:
    """Has `called` called before each call of a phase."""
    owner, names = PHASES[phase]

    def wrap(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            called()
            return original(*args, **kwargs)

        return wrapped

    for name in names:
        setattr(owner, name, wrap(getattr(owner, name)))


def count_calls() -> Counter[str]:
    """How often this process is in each phase from now on."""
    counts: Counter[str] = Counter()
    for phase in PHASES:
        before_each(phase, lambda phase=phase: counts.update([phase]))
    return counts


def plant_in_op(fault: Fault) -> None:
    """Strikes at one of the actions of an op."""
    execute, calls = Executor.execute, 0

    def wrapped(self: Executor, action: Action) -> None:
        nonlocal calls
        calls += action.op.value == fault.phase
        if calls == fault.call:
            calls += 1
            fault.strike()
        execute(self, action)

    Executor.execute = wrapped  # type: ignore[method-assign]


def train_with_faults(cfg: Any, *faults: Fault) -> int:
    """What a worker runs."""
    rank, counted = int(os.environ["RANK"]), [(fault.mark, count_calls()) for fault in faults if fault.phase == "count"]
    for fault in faults:
        plant(fault, rank)
    code = train(cfg)
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    left = [name for name in names if "gloo" in name] + [one.name for one in threading.enumerate()][1:]
    assert not left, f"threads that are still there when Python ends may take it down: {left}"
    for mark, counts in counted:
        Path(f"{mark}{rank}").write_text(json.dumps(counts))
    return code


def launch(world: int, settings: dict[str, Any], *planted: Fault) -> int:
    """One run, as the command line has it: on local workers, or on those found; gives the exit code."""
    # By name, for workers: this file may be the program itself.
    from tests.train import faults

    log_plainly()
    cfg = small_config(world, **settings)
    named, restarts = [faults.Fault(**asdict(fault)) for fault in planted], cfg.launch.max_restarts
    return guarded(lambda: launch_workers(faults.train_with_faults, world, cfg, *named, max_restarts=restarts))


def arguments(world: int, settings: dict[str, Any], *faults: Fault) -> list[str]:
    """What follows Python or torchrun on the command line of this program."""
    words = json.dumps({"world": world, "settings": settings, "faults": [asdict(fault) for fault in faults]})
    return ["-m", "tests.train.faults", words]


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every piece in a run's last checkpoint but what belongs to a process (the random state), by name and place."""
    final, found = folder / "checkpoints" / "final", {}
    for name, record in read_index(final).items():
        for offsets, _, file, key in record["pieces"]:
            if name != "run.random_state":
                found[f"{name} {offsets}"] = TensorFile(final / file).read(key)
    return found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(launch(given["world"], given["settings"], *(Fault(**fault) for fault in given["faults"])))
