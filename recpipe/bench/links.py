"""Links of a chosen rate on one machine: a network namespace a rank, joined by a bridge that has a namespace of its own.

Everything of a run carries the number of the process that made it, and is removed when that process leaves, whatever the
reason; what a killed one left behind is removed by the next. Needs root and iproute2. The rate ``none`` is plain loopback.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from recpipe.errors import ConfigError

NONE = "none"
DEVICE = "eth0"
_PREFIX = "rpbench"
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
# As measured to work: tbf drops nothing at these, and netem is not in every kernel.
_SHAPER = ("burst", "512kb", "latency", "100ms")


def bits_per_second(link: str) -> float | None:
    """Rate of a link; None for loopback. Raises ConfigError for what is none."""
    if link == NONE:
        return None
    found = _RATE.fullmatch(link)
    if found is None or not float(found[1]):
        raise ConfigError(f"links: {link}: write none, or a rate as tc does, for instance 1gbit or 400mbit")
    return float(found[1]) * _UNITS[found[2]]


class Network(Protocol):
    """Where ranks run."""

    def prefix(self, rank: int) -> list[str]:
        """Words to put before the command of a rank."""
        ...

    @property
    def interface(self) -> str:
        """What the ranks have to use, ``GLOO_SOCKET_IFNAME``."""
        ...

    def set_rate(self, link: str) -> None:
        """Changes the rate of every link."""
        ...

    def sent(self) -> list[int]:
        """Bytes that have left each rank since it was made, as the interface counts them."""
        ...


class Loopback:
    """No links. `sent` is a rank's share of all that this machine has sent to itself: other programs count, too."""

    interface = "lo"

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def prefix(self, rank: int) -> list[str]:
        return []

    def set_rate(self, link: str) -> None:
        assert link == NONE

    def sent(self) -> list[int]:
        total = int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())
        return [total // self._ranks] * self._ranks

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None: ...


class Namespaces:
    """A context manager: inside it there are `ranks` namespaces, each with one link to the common bridge.

    Raises:
        ConfigError: on entering: no root, no iproute2, or the kernel refuses.
    """

    interface = DEVICE

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._base = f"{_PREFIX}{os.getpid()}"

    def prefix(self, rank: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(rank)]

    def set_rate(self, link: str) -> None:
        """Both directions of each link: what a rank sends, and what the bridge sends to it."""
        for rank in range(self._ranks):
            for namespace, device in ((self._name(rank), DEVICE), (self._switch, f"port{rank}")):
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", link, *_SHAPER)

    def sent(self) -> list[int]:
        file = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        return [int(_run(*self.prefix(rank), "cat", file)) for rank in range(self._ranks)]

    def __enter__(self) -> Namespaces:
        check_can_make_links()
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def _switch(self) -> str:
        return f"{self._base}switch"

    def _name(self, rank: int) -> str:
        return f"{self._base}rank{rank}"

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge0", "up")
        for rank in range(self._ranks):
            name, port = self._name(rank), f"port{rank}"
            _run("ip", "netns", "add", name)
            peer = ("peer", "name", DEVICE, "netns", name)
            _run("ip", "-n", self._switch, "link", "add", port, "type", "veth", *peer)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge0", "up")
            _run("ip", "-n", name, "addr", "add", f"10.77.{rank // 250}.{rank % 250 + 1}/16", "dev", DEVICE)
            for device in (DEVICE, "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")

    def _remove(self) -> None:
        _delete(name for name in namespaces() if name.startswith((f"{self._base}rank", self._switch)))


def open_network(link: str, ranks: int) -> AbstractContextManager[Network]:
    """Loopback or namespaces; to be entered."""
    return Loopback(ranks) if link == NONE else Namespaces(ranks)


def check_can_make_links() -> None:
    """Raises ConfigError without root or iproute2."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise ConfigError(
            f"links of a chosen rate need {' and '.join(missing)} (iproute2); install it, or use links=[none]"
        )
    if os.geteuid() != 0:
        raise ConfigError("links of a chosen rate need root, for network namespaces; run as root, or use links=[none]")


def namespaces() -> list[str]:
    """Names of those that benchmarks made, of this process or others."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []


def remove_leftovers() -> list[str]:
    """Removes namespaces of benchmarks that are no longer running; gives their names."""
    found = []
    for name in namespaces():
        owner = re.match(rf"{_PREFIX}(\d+)", name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            found.append(name)
    _delete(found)
    return found


def _delete(names: Iterable[str]) -> None:
    for name in list(names):
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            f"links: '{' '.join(words)}' failed: {done.stderr.strip()}; the kernel has to allow network namespaces, veth and "
            f"tbf, or use links=[none]"
        )
    return done.stdout
