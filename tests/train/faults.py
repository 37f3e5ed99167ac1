"""Faults that strike one rank in one phase of a run: killed, stopped, hanging, raising; and the program that plants them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
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
from recpipe.train.session import run_train
from recpipe.train.trainer import DenseUpdates
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
    if fault.rank not in (rank, -1):
        return
    if fault.phase in Op.__members__:
        plant_in_op(fault)
        return
    owner, names = PHASES[fault.phase]
    calls = 0

    def wrap(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fault.call:
                fault.strike()
            return original(*args, **kwargs)

        return wrapped

    for name in names:
        setattr(owner, name, wrap(getattr(owner, name)))


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


def train_with_fault(cfg: Any, fault: Fault | None) -> int:
    """What a worker runs."""
    if fault is not None:
        plant(fault, int(os.environ["RANK"]))
    return run_train(cfg)


def arguments(world: int, settings: dict[str, Any], fault: Fault | None = None) -> list[str]:
    """The command line of this program."""
    words = json.dumps({"world": world, "settings": settings, "fault": asdict(fault) if fault else None})
    return [sys.executable, "-m", "tests.train.faults", words]


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every piece in a run's last checkpoint but what belongs to a process (the random state), by name and place."""
    final, found = folder / "checkpoints" / "final", {}
    for name, record in read_index(final).items():
        for offsets, _, file, key in record["pieces"]:
            if name != "run.random_state":
                found[f"{name} {offsets}"] = TensorFile(final / file).read(key)
    return found


if __name__ == "__main__":
    from tests.train import faults

    given = json.loads(sys.argv[1])
    chosen = faults.Fault(**given["fault"]) if given["fault"] else None
    log_plainly()
    composed = small_config(given["world"], **given["settings"])
    restarts, nproc = composed.launch.max_restarts, given["world"]
    sys.exit(guarded(lambda: launch_workers(faults.train_with_fault, nproc, composed, chosen, max_restarts=restarts)))
