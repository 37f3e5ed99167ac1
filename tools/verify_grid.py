"""Random settings beside the single-process reference: none may differ, hang, or end in an error that is not expected.

    python -m tools.verify_grid --settings 300 --seed 1
    python -m tools.verify_grid --only 17 --seed 1          # one setting again, in the same way

Meshes of 1x1 to 2x3, all models, families, shardings, depths and optimizers, batches from one row, bags that are empty, tables
of two rows. Rank processes are kept; each setting makes process groups of its own. `grid_settings` draws them and says which
refusals are expected. Everything else is printed with the command that repeats it; the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import recpipe.cli.verify
from recpipe.cli.arguments import to_overrides
from recpipe.cli.conf import find_conf
from recpipe.cli.fit import check_fit
from recpipe.cli.schemas import complete, primary
from recpipe.comm import Groups
from recpipe.errors import RecpipeError
from recpipe.train.config import VerifyConfig
from recpipe.train.setup import build_job
from recpipe.train.verify import compare, told
from tools.grid_settings import Setting, draw, is_expected

MESHES = tuple((replicas, stages) for replicas in (1, 2) for stages in (1, 2, 3))
SECONDS = 60.0
_ORDER = ("same", "refused", "DIFFERENT", "unexpected")
Outcome = tuple[str, str]
"""``same``, ``refused``, ``DIFFERENT``, ``hang`` or ``unexpected``, and what was said."""


def composed(setting: Setting) -> Any:
    """The configuration as `recpipe verify` makes and checks it. Raises RecpipeError where it refuses it."""
    words = [f"{key}={value}" for key, value in setting.words.items()]
    root = primary(recpipe.cli.verify, "verify", find_conf())
    with initialize_config_dir(str(find_conf()), version_base="1.3"):
        cfg = compose(root, to_overrides(words, VerifyConfig))
    OmegaConf.resolve(cfg)
    complete(cfg)
    check_fit(cfg, list(setting.words), "verify")
    return cfg


def judge(cfg: Any, groups: Groups, words: dict[str, str], tolerance: float) -> Outcome:
    """What this rank finds; collective."""
    try:
        job, lines = build_job(cfg, groups), list[str]()
        passed = told(compare(job, cfg.steps, tolerance), tolerance, lines.append)
    except RecpipeError as error:
        return refusal(error, words)
    return ("same", "") if passed else ("DIFFERENT", "\n".join(lines))


def refusal(error: RecpipeError, words: dict[str, str]) -> Outcome:
    """A refusal by the project, expected or not."""
    return ("refused" if is_expected(str(error), words) else "unexpected"), f"{type(error).__name__}: {error}"


def _rank(rank: int, world: int, folder: str, cfg: Any, words: dict[str, str], tolerance: float) -> Outcome:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS))
    try:
        found = judge(cfg, Groups.create(), words, tolerance)
        dist.barrier()
        return found
    except Exception:
        return "unexpected", traceback.format_exc()
    finally:
        dist.destroy_process_group()


def _result(job: Future[Outcome]) -> Outcome:
    error = job.exception()
    return job.result() if error is None else ("unexpected", f"a rank has died: {error}")


class Team:
    """Rank processes that stay; a setting takes as many of them as it has ranks, all at once."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._pool = ProcessPoolExecutor(ranks, mp_context=get_context("fork"))

    def run(self, setting: Setting) -> Outcome:
        """The outcome of one setting: the worst of any rank."""
        try:
            cfg = composed(setting)
        except RecpipeError as error:
            return refusal(error, setting.words)
        except Exception:
            return "unexpected", traceback.format_exc()
        with tempfile.TemporaryDirectory() as folder:
            given = setting.world, folder, cfg, setting.words, setting.tolerance
            jobs = [self._pool.submit(_rank, rank, *given) for rank in range(setting.world)]
            return self._worst(jobs)

    def _worst(self, jobs: list[Future[Outcome]]) -> Outcome:
        end, waiting, found = time.monotonic() + SECONDS, set(jobs), [("same", "")]
        while waiting and found[-1][0] != "unexpected":
            done, waiting = wait(waiting, max(0.0, end - time.monotonic()), FIRST_COMPLETED)
            if not done:
                found.append(("hang", f"{len(waiting)} of {len(jobs)} ranks after {SECONDS:.0f} s"))
                break
            found = sorted([*found, *map(_result, done)], key=lambda one: _ORDER.index(one[0]))
        if waiting or found[-1][0] == "unexpected":
            # Others may still wait for a rank that has failed, or it is gone.
            self._begin_anew()
        return found[-1]

    def _begin_anew(self) -> None:
        for process in list(self._pool._processes.values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = ProcessPoolExecutor(self._ranks, mp_context=get_context("fork"))


def main() -> int:
    """Runs the grid; prints what is not as expected, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one setting to run")
    options = parser.parse_args()
    numbers = range(options.settings) if options.only is None else [options.only]
    team, counts, begun = Team(6), Counter[str](), time.monotonic()
    for number in numbers:
        setting = draw(options.seed, number, MESHES)
        outcome, said = team.run(setting)
        counts[outcome] += 1
        if outcome not in ("same", "refused") or options.only is not None:
            print(f"{number}: {outcome}\n  {setting.command}\n{said}", flush=True)
        if (number + 1) % 25 == 0:
            print(f"{number + 1} settings: {dict(counts)}, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"seed {options.seed}: {dict(counts)}, {time.monotonic() - begun:.0f} s")
    return 0 if set(counts) <= {"same", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
