"""Rows a second of `recpipe data prepare` beside other ways to do the same, one after the other on one machine.

    python tools/data_speed.py ../shared/data/criteo/train.txt.gz [--times 5] [--python-with-polars PYTHON]

Each way runs in a process of its own on the same plain text file (the given file, repeated): labels, log dense values, ids by
frequency with a threshold of 3, written as .npy. TorchRec runs when it is importable, polars when an interpreter that has it
is named. CPU seconds are beside the wall time, for machines that are not idle.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECPIPE = """
import sys
from recpipe.data.config import CriteoData
from recpipe.data.prepare.job import prepare
prepare(CriteoData(path=sys.argv[1], out=sys.argv[2] + "/out", frequency_threshold=3, valid_fraction=0.0,
                   test_fraction=0.0), print)
"""
PANDAS = """
import sys
import numpy as np, pandas as pd
names = ["l", *[f"i{n}" for n in range(13)], *[f"c{n}" for n in range(26)]]
frame = pd.read_csv(sys.argv[1], sep="\\t", names=names, dtype=dict.fromkeys(names[14:], str))
np.save(sys.argv[2] + "/labels.npy", frame["l"].to_numpy(np.int32))
np.save(sys.argv[2] + "/dense.npy", np.log(np.maximum(frame[names[1:14]].fillna(0).to_numpy(np.float32), -2) + 3))
ids = np.empty((len(frame), 26), np.int32)
for n, name in enumerate(names[14:]):
    counts = frame[name].value_counts()
    known = pd.Series(np.arange(2, 2 + (counts >= 3).sum()), index=counts.index[counts >= 3])
    ids[:, n] = frame[name].map(known).fillna(1).where(frame[name].notna(), 0)
np.save(sys.argv[2] + "/sparse.npy", ids)
"""
POLARS = """
import sys
import numpy as np, polars as pl
names = ["l", *[f"i{n}" for n in range(13)], *[f"c{n}" for n in range(26)]]
types = {name: pl.String if name[0] == "c" else pl.Int64 for name in names}
frame = pl.read_csv(sys.argv[1], separator="\\t", has_header=False, schema=types, quote_char=None)
np.save(sys.argv[2] + "/labels.npy", frame["l"].to_numpy().astype(np.int32))
dense = frame.select((pl.col(names[1:14]).fill_null(0).clip(lower_bound=-2) + 3).log().cast(pl.Float32))
np.save(sys.argv[2] + "/dense.npy", dense.to_numpy())
ids = np.empty((len(frame), 26), np.int32)
for n, name in enumerate(names[14:]):
    counts = frame[name].drop_nulls().value_counts().filter(pl.col("count") >= 3)
    counts = counts.sort(["count", name], descending=[True, False])
    known = counts.select(name).with_row_index("id", offset=2).with_columns(pl.col("id").cast(pl.Int32))
    found = frame.select(name).join(known, on=name, how="left", maintain_order="left")
    chosen = pl.when(pl.col(name).is_null()).then(0).otherwise(pl.col("id").fill_null(1))
    ids[:, n] = found.select(chosen).to_series().to_numpy()
np.save(sys.argv[2] + "/sparse.npy", ids)
"""
TORCHREC = """
import sys
from torchrec.datasets.criteo import BinaryCriteoUtils as utils
out = sys.argv[2]
utils.tsv_to_npys(sys.argv[1], out + "/d.npy", out + "/s.npy", out + "/l.npy")
utils.sparse_to_contiguous([out + "/s.npy"], out, frequency_threshold=3)
"""


def measure(python: str, script: str, text: Path, rows: int) -> dict[str, float | str]:
    """Wall and CPU seconds of one way, or why it did not run."""
    with tempfile.TemporaryDirectory() as folder:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run([python, "-c", script, str(text), folder], capture_output=True, text=True)
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "rows_per_s": rows / wall, "rows_per_cpu_s": rows / cpu}


def main() -> None:
    """Runs every way and prints a line for each, then all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--python-with-polars", default=sys.executable)
    arguments = parser.parse_args()
    raw = arguments.file.read_bytes()
    raw = gzip.decompress(raw) if arguments.file.suffix == ".gz" else raw
    ways = [("recpipe", sys.executable, RECPIPE), ("polars", arguments.python_with_polars, POLARS)]
    ways += [("pandas", sys.executable, PANDAS), ("torchrec", sys.executable, TORCHREC)]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "input.txt"
        text.write_bytes(raw * arguments.times)
        rows = raw.count(b"\n") * arguments.times
        print(f"{rows:,} rows\n{'way':<10} {'wall s':>8} {'CPU s':>8} {'rows/s':>10} {'rows/CPU s':>11}")
        for name, python, script in ways:
            found = results[name] = measure(python, script, text, rows)
            if "error" in found:
                print(f"{name:<10} did not run: {found['error']}")
                continue
            numbers = f"{found['wall_s']:>8.1f} {found['cpu_s']:>8.1f} {found['rows_per_s']:>10,.0f}"
            print(f"{name:<10} {numbers} {found['rows_per_cpu_s']:>11,.0f}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
