"""Accuracy of 16 bits beside 32: the default run on synthetic rows, and criteo_dlrm on files given, over seeds.

usage: tools/bf16_accuracy.py OUT [TRAIN VALID] [--seeds 0 1 2 3 4] [--only synthetic|criteo]
Runs that OUT already has are not run again. Prints a line a run, then means and their differences.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from recpipe.bench.settings import BF16

PRECISIONS: dict[str, Sequence[str]] = {"fp32": (), "bf16": BF16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="*", help="training and validation file of Criteo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", choices=("synthetic", "criteo"))
    given = parser.parse_args()
    jobs: dict[str, list[str]] = {"synthetic": []}
    if given.files:
        train, valid = given.files
        jobs["criteo"] = ["experiment=criteo_dlrm", f"data.path={train}", f"data.valid_path={valid}"]
    for name, settings in jobs.items():
        if given.only in (None, name):
            report(name, {p: [run(given.out, name, p, seed, settings) for seed in given.seeds] for p in PRECISIONS})


def run(out: Path, name: str, precision: str, seed: int, settings: list[str]) -> dict[str, float]:
    """One training run, unless it is there; gives its summary."""
    folder = out / f"{name}-{precision}-{seed}"
    if not (folder / "summary.json").exists():
        own = [f"seed={seed}", f"run.dir={folder}", "run.overwrite=true", "save_checkpoint=false", "log.progress=none"]
        command = [sys.executable, "-m", "recpipe.cli.main", "train", *settings, *PRECISIONS[precision], *own]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, float] = json.loads((folder / "summary.json").read_text())
    print(f"{name} {precision} seed {seed}: auc {found['auc']:.5f} logloss {found['logloss']:.5f}", flush=True)
    return found


def report(name: str, runs: dict[str, list[dict[str, float]]]) -> None:
    """Means over seeds, and what 16 bits change; the spread is that of single runs."""
    for metric in ("auc", "logloss"):
        values = {precision: [one[metric] for one in found] for precision, found in runs.items()}
        means = "  ".join(f"{precision} {mean(found):.5f}" for precision, found in values.items())
        spread = f"  spread over seeds {stdev(values['fp32']):.5f}" if len(values["fp32"]) > 1 else ""
        print(f"{name} {metric}: {means}  difference {mean(values['bf16']) - mean(values['fp32']):+.5f}{spread}")


if __name__ == "__main__":
    main()
