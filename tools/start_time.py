"""Time to the first step of the default run beside that of importing torch and torchrec and opening the data, alternating.

usage: tools/start_time.py [ROUNDS] [key=value ...]; settings go to `recpipe train`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from recpipe.train.warm import STARTED

BARE = """
import torch, torchrec
from recpipe.data import open_dataset
from recpipe.data.config import SCHEMAS
open_dataset(SCHEMAS["synthetic"]())
"""
SHORT = ["limit_train_batches=2", "limit_val_batches=1", "limit_test_batches=1", "save_checkpoint=false", "log.progress=none"]


def bare() -> float:
    """Seconds of a process that imports, opens, and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", BARE], check=True)
    return time.perf_counter() - start


def first_step(settings: list[str]) -> float:
    """Seconds from the start of the command to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "recpipe.cli.main", "train", *SHORT, f"run.dir={folder}/run", *settings]
        variables = {**os.environ, STARTED: repr(time.time())}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables)
        return float(json.loads((Path(folder) / "run" / "summary.json").read_text())["seconds_to_first_step"])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    pairs = [(bare(), first_step(sys.argv[2:])) for _ in range(rounds)]
    for plain, ours in pairs:
        print(f"imports and data {plain:.2f} s, first step {ours:.2f} s")
    plain, ours = (median(column) for column in zip(*pairs, strict=True))
    print(f"median: imports and data {plain:.2f} s, first step {ours:.2f} s: {ours / plain:.2f} times")


if __name__ == "__main__":
    main()
