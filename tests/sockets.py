"""Sockets on which the processes of a command listen, read from /proc while they run."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_LISTENING, _ACCEPTS = "0A", 0x10000


class Watch:
    """Looks, from a thread while it is entered, at all that descends from a process.

    Args:
        root: the process; it and its descendants are looked at.
        label: what it does now; gives a key of `found`.
    """

    def __init__(self, root: int, label: Callable[[], str]) -> None:
        self._root, self._label = root, label
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.found: dict[str, set[str]] = defaultdict(set)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            label, known = self._label(), listeners()
            for pid in family(self._root):
                self.found[label] |= {known[inode] for inode in inodes(pid) if inode in known}
            time.sleep(0.1)


def family(root: int) -> list[int]:
    """A process and its descendants."""
    try:
        return [root, *(one.pid for one in psutil.Process(root).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def inodes(pid: int) -> set[str]:
    """Numbers of the sockets that a process holds."""
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found


def listeners() -> dict[str, str]:
    """Sockets of this machine that accept connections: where, by number; of those of UDP all that are bound."""
    found = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            host, _, port = words[1].partition(":")
            if (words[3] == _LISTENING) if name.startswith("tcp") else int(port, 16):
                found[words[9]] = f"{name} {_address(host)}"
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & _ACCEPTS:
            found[words[6]] = f"unix {words[7] if len(words) > 7 else ''}"
    return found


def is_private(where: str) -> bool:
    """Whether nobody but this machine reaches it, and, of a socket with a name, nobody but its user."""
    kind, _, place = where.partition(" ")
    if kind != "unix":
        return ipaddress.ip_address(place).is_loopback
    # A name that begins with @ is in no directory: every user reaches it.
    folder = Path(place).parent
    return place.startswith("/") and (not folder.exists() or folder.stat().st_mode & 0o077 == 0)


def _address(text: str) -> str:
    """From the kernel's form: words of four bytes, each in the byte order of the machine (little endian)."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
