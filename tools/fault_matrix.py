"""A fault in every op of a schedule: an error, a kill, a stall; and how long until every process has left.

    python -m tools.fault_matrix [--kinds raise kill hang]

Two ranks, a pipeline of two stages. Passes when the failing rank is the one that is named, nothing hangs, and no process is
left. The watchdog's time, 3 s here, is part of what a stall takes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from recpipe.schedule.ir import Op
from tests.train.faults import Fault
from tests.train.test_failures import finish, start

PIPELINE = {"mesh__stages": 2, "schedule__microbatches": 4, "save_checkpoint": False, "launch__watchdog_seconds": 3}
FIRST_STAGE = (Op.SA, Op.RG)
SAID = {"raise": "unexpected ZeroDivisionError: planted", "kill": "was killed by SIGKILL", "hang": "has not moved for"}


def strike(op: Op, kind: str) -> tuple[bool, float]:
    """Whether the run ended as it should, and seconds from the fault to its end."""
    rank = 0 if op in FIRST_STAGE else 1
    family = "chimera" if op in (Op.B, Op.R) else "zb_h1"
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        fault = Fault(rank, op.value, 2, kind, mark=str(mark))
        code, _, said = finish(start(2, Path(folder) / "run", fault, **PIPELINE, schedule__name=family))
        seconds = time.time() - mark.stat().st_mtime if mark.exists() else float("nan")
    first = said.splitlines()[0] if said else ""
    return code != 0 and f"rank {rank}" in first and SAID[kind] in first, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(SAID), choices=list(SAID))
    kinds = parser.parse_args().kinds
    print(f"| op | {' | '.join(f'{kind}, s' for kind in kinds)} |\n|---|{'---|' * len(kinds)}")
    failed = 0
    for op in Op:
        found = [strike(op, kind) for kind in kinds]
        failed += sum(not passed for passed, _ in found)
        print(f"| {op} | {' | '.join(f'{s:.1f}' if passed else f'FAILED {s:.1f}' for passed, s in found)} |", flush=True)
    print(f"{failed} of {len(Op) * len(kinds)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
