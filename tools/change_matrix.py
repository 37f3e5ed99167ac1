"""Saves under one mesh and plan, resumes under another, for all pairs or some: the end must be that of one plain run.

python tools/change_matrix.py --pairs 100 --seed 1      # 0: all 625 pairs of 5 meshes x 5 plans
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.train.resuming import assert_close, run  # noqa: E402
from tests.train.test_resume import MESHES, PLANS, on_mesh  # noqa: E402


def main() -> None:
    """Prints a line a pair; the first one beyond 1e-12 is an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases = list(itertools.product(MESHES, PLANS))
    pairs = list(itertools.product(cases, cases))
    random.Random(options.seed).shuffle(pairs)
    with tempfile.TemporaryDirectory(prefix="recpipe-matrix-") as base:
        reference = run(*on_mesh(Path(base) / "reference", "1x1", "table_wise"))["tensors"]
        for number, ((mesh, plan), (other_mesh, other_plan)) in enumerate(pairs[: options.pairs or None]):
            folder = Path(base) / "pair"
            world, cfg = on_mesh(folder, mesh, plan)
            run(world, cfg, stop_at=2 if world == 1 else 1)
            done = run(*on_mesh(folder, other_mesh, other_plan, resume="auto", batch_size=cfg.batch_size))
            assert done["step"] == 5 and done["progress"].rows == 66
            assert_close(done["tensors"], reference, 1e-12)
            print(f"{number:3d} {mesh} {plan} -> {other_mesh} {other_plan}: same within 1e-12", flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
