"""Runs a command on each of several emulated nodes: network namespaces, joined by links of a chosen rate.

    python -m tools.two_nodes --rate 1gbit -- torchrun --nnodes=2 --nproc-per-node=2 --node-rank={node} \\
        --master-addr={master} --master-port=29500 -m recpipe.cli.main train mesh.stages=2 run.dir=RUN resume=auto

In the command ``{node}`` becomes the number of the node, ``{address}`` its address, ``{master}`` that of node 0, and
``{first}`` true on node 0 and false elsewhere: ``--rdzv-backend=c10d --rdzv-endpoint={master}:29500 --local-addr={address}
--rdzv-conf=is_host={first}`` is torchrun's other way to let nodes meet. The nodes share the file system and the
host's name, which they resolve as the host does, mostly to loopback. The largest exit code is given; namespaces are removed in
any case. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from recpipe.bench.links import Namespaces

_ADDRESS = "10.77.0.{}"


class Nodes:
    """A context manager: inside it there are `count` nodes; whatever was started on them is ended with it.

    Args:
        count: nodes.
        rate: of each link, as tc writes it; None: as fast as it goes.

    Raises:
        ConfigError: on entering: namespaces cannot be made here.
    """

    def __init__(self, count: int = 2, rate: str | None = None) -> None:
        self._count, self._rate, self._network = count, rate, Namespaces(count)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str], **options: object) -> list[subprocess.Popen[str]]:
        """Starts `command` on every node.

        Args:
            command: with the words in braces still in it.
            options: of `subprocess.Popen`.
        """
        for node in range(self._count):
            words = [_on_node(word, node) for word in command]
            self.processes.append(
                subprocess.Popen([*self._network.prefix(node), *words], text=True, **options)  # type: ignore[call-overload]
            )
        return self.processes

    def __enter__(self) -> Nodes:
        self._network.__enter__()
        if self._rate is not None:
            self._network.set_rate(self._rate)
        return self

    def __exit__(self, *_: object) -> None:
        for number, seconds in ((signal.SIGTERM, 40), (signal.SIGKILL, None)):
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(number)
            for process in self.processes:
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue
        self._network.__exit__(None, None, None)


def _on_node(word: str, node: int) -> str:
    address = _ADDRESS.format(node + 1)
    known = {"node": str(node), "address": address, "master": _ADDRESS.format(1), "first": str(node == 0).lower()}
    for name, value in known.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    """Gives the largest exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", help="for instance 1gbit", default=None)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    with Nodes(options.nodes, options.rate) as nodes:
        return max(abs(process.wait()) for process in nodes.start(options.command))


if __name__ == "__main__":
    sys.exit(main())
