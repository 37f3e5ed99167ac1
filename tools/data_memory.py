"""Peak memory and speed of `recpipe data prepare` on a file repeated 1, 10 and 50 times; prints a table.

    python tools/data_memory.py ../shared/data/criteo/train.txt.gz [--times 1 10 50] [--threads 2] [--memory-limit 2GiB]

Each size runs in a process of its own. The input is a gzip file of as many members; it and the output lie in a temporary
directory. Peak memory is the largest resident size that the system saw, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """
import json, resource, sys, time
from recpipe.data.config import CriteoData
from recpipe.data.prepare.job import prepare
path, out, threads, limit = sys.argv[1:]
start = time.monotonic()
phases = []
directory = prepare(
    CriteoData(path=path, out=out, threads=int(threads), memory_limit=limit, valid_fraction=0.0, test_fraction=0.0),
    lambda line: None,
    lambda progress: phases.append(progress) if progress.finished else None,
)
rows = json.loads((directory / "manifest.json").read_text())["lines"]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "rows": rows, "peak": peak, "seconds": time.monotonic() - start,
    "phases": {p.phase: round(p.seconds, 2) for p in phases},
}))
"""


def main() -> None:
    """Runs every size and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--memory-limit", default="2GiB")
    arguments = parser.parse_args()
    data = arguments.file.read_bytes()
    print(f"{'times':>6} {'rows':>12} {'peak MiB':>9} {'seconds':>8} {'rows/s':>9}  phases (s)")
    for times in arguments.times:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"input{''.join(arguments.file.suffixes)}"
            with path.open("wb") as file:
                for _ in range(times):
                    file.write(data)
            command = [
                sys.executable,
                "-c",
                RUN,
                str(path),
                f"{folder}/out",
                str(arguments.threads),
                arguments.memory_limit,
            ]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rate = found["rows"] / found["seconds"]
        peak = found["peak"] / 2**20
        print(f"{times:>6} {found['rows']:>12,} {peak:>9.0f} {found['seconds']:>8.1f} {rate:>9,.0f}  {found['phases']}")


if __name__ == "__main__":
    main()
