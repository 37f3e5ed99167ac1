"""How much faster than training the loader is, on one core: python tools/loader_speed.py PREPARED_DIR [--models dlrm dcn_v2]

First rows/s of the loader alone, with 0, 1, 2 and 4 workers and each order of rows; then rows/s of training each model on
the same directory with one process and one thread. The share of the fastest model's rows/s is the figure that counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recpipe.data import Loader, open_dataset
from recpipe.data.config import SHUFFLES, PreparedData

MODELS = ["dlrm", "dcn_v2", "deepfm", "wide_deep", "wukong", "feature_transformer"]
WORKERS = (0, 1, 2, 4)
REPEATS = 5


def loader_pace(directory: str, shuffle: str, batch_size: int, workers: int) -> float:
    """Rows/s of an epoch, the median of several."""
    data = open_dataset(PreparedData(path=directory, shuffle=shuffle), seed=0)
    rows = data.num_rows("train")
    ranges = [(start, min(start + batch_size, rows)) for start in range(0, rows, batch_size)]
    paces = []
    for epoch in range(REPEATS):
        start = time.perf_counter()
        seen = sum(batch.num_rows for batch in Loader(data, "train", epoch, ranges, workers))
        paces.append(seen / (time.perf_counter() - start))
    return statistics.median(paces)


def training_pace(directory: str, model: str, batch_size: int) -> float:
    """Rows/s of `recpipe train` with one process and one thread, over an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"model={model}", "data=prepared", f"data.path={directory}", f"batch_size={batch_size}"]
        settings += ["launch.nproc=1", "launch.threads=1", "log.progress=none", "save_checkpoint=false"]
        settings += ["limit_val_batches=1", "limit_test_batches=1", f"run.dir={folder}/run"]
        command = [sys.executable, "-m", "recpipe.cli.main", "train", *settings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return float(json.loads((Path(folder) / "run" / "summary.json").read_text())["rows_per_s"])


def main() -> None:
    """Measures on one core and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("loader, rows/s by workers\n" + f"{'shuffle':<20}" + "".join(f"{count:>12}" for count in WORKERS))
    slowest = float("inf")
    for shuffle in SHUFFLES:
        paces = [loader_pace(arguments.directory, shuffle, arguments.batch_size, count) for count in WORKERS]
        slowest = min(slowest, *paces)
        print(f"{shuffle:<20}" + "".join(f"{pace:>12,.0f}" for pace in paces), flush=True)
    print("training, rows/s")
    fastest = 0.0
    for model in arguments.models:
        pace = training_pace(arguments.directory, model, arguments.batch_size)
        fastest = max(fastest, pace)
        print(f"{model:<20}{pace:>12,.0f}", flush=True)
    print(f"slowest loader / fastest model: {slowest / fastest:.1f}")


if __name__ == "__main__":
    main()
