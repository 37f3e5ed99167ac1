"""The processes of one contestant, one a rank, which wait between blocks while others run. Seen from the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from recpipe.bench.links import Network, bits_per_second, open_network
from recpipe.bench.settings import BenchConfig, Contestant, Workload, workloads
from recpipe.errors import TrainingError

Reply = dict[str, Any]
_LEAVE_SECONDS = 10


class Ranks:
    """A context manager: inside it the processes of `contestant` are there and ready.

    Args:
        contestant, workload: what they run.
        network: where.

    Raises:
        TrainingError: a rank has died, with the last it said.
    """

    def __init__(self, contestant: Contestant, workload: Workload, network: Network) -> None:
        self.contestant = contestant
        self._workload, self._network = workload, network
        self._folder = tempfile.TemporaryDirectory(prefix="recpipe-bench-")
        self._processes: list[subprocess.Popen[str]] = []

    def ask(self, request: str, **arguments: Any) -> list[Reply]:
        """Sends a request to all ranks at once and waits for the reply of each, in rank order."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                print(json.dumps({"request": request, **arguments}), file=process.stdin, flush=True)
            except BrokenPipeError:
                continue  # its death is told below
        return [self._reply(rank) for rank in range(len(self._processes))]

    def __enter__(self) -> Ranks:
        try:
            for rank in range(self._workload.ranks):
                self._processes.append(self._start(rank))
            for rank in range(self._workload.ranks):
                self._reply(rank)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(_LEAVE_SECONDS)
            for pipe in (process.stdin, process.stdout):
                _close(pipe)
        self._folder.cleanup()

    def _start(self, rank: int) -> subprocess.Popen[str]:
        work = {
            "rank": rank,
            "command": os.getpid(),
            "store": str(Path(self._folder.name) / "store"),
            "contestant": asdict(self.contestant),
            "workload": asdict(self._workload),
        }
        command = [*self._network.prefix(rank), sys.executable, "-m", "recpipe.bench.worker", json.dumps(work)]
        variables = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self._network.interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        with self._log(rank).open("w") as log:
            # A session of its own: Ctrl-C is for the command, which then ends its ranks.
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                env={**os.environ, **variables},
            )  # fmt: skip

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"{rank}.log"

    def _reply(self, rank: int) -> Reply:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise TrainingError(self._death(rank))
        reply: Reply = json.loads(line)
        return reply

    def _death(self, rank: int) -> str:
        """Another rank may have been the first to fail: what each said last."""
        said = []
        for other in (rank, *(r for r in range(len(self._processes)) if r != rank)):
            lines = self._log(other).read_text(errors="replace").strip().splitlines()
            said += [f"rank {other} said last:", *(f"  {line}" for line in lines[-8:])]
        return "\n".join([f"bench: rank {rank} of {self.contestant.label} has died", *said])


def on_links(config: BenchConfig) -> Iterator[tuple[Workload, str, Network]]:
    """Every workload on every link, with the network there is for as long as the caller is at it.

    Raises:
        ConfigError: before anything is made: a link or a workload that cannot be.
    """
    for link in config.links:
        bits_per_second(link)
    for workload in workloads(config):
        for link in config.links:
            with open_network(link, config.ranks) as network:
                network.set_rate(link)
                yield workload, link, network


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except BrokenPipeError:
            return
