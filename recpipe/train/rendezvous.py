"""How the ranks of a run find each other: the store that they share, and a number of the start on which they agree.

Workers of our own launcher share files in a directory that only their user may enter, so no port is opened. Workers of
torchrun or SLURM share torch's `TCPStore` at MASTER_ADDR. torchrun keeps one such store over restarts, and its own count of
them differs between nodes: so rank 0 gathers the ranks of each start and gives it a number. Nothing in a store is a pickle.
Importing this module does not import torch.
"""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from recpipe.errors import TrainingError
from recpipe.train.interface import set_interface
from recpipe.train.local_worker import worker_folder

_POLL_SECONDS = 0.05
_MEMBERS = "recpipe/members"
_number: int | None = None


class Store(Protocol):
    """The part of torch's key-value stores that is used."""

    def set(self, key: str, value: str) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class FolderStore:
    """A file a key in a directory: what one rank tells and others read. No rank ever waits for another that is stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: str) -> None:
        """Writes the value, whole or not at all."""
        path = self._path(key)
        partial = path.with_suffix(".partial")
        partial.write_text(value)
        partial.replace(path)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Values; empty where nothing was told yet."""
        return [path.read_bytes() if path.exists() else b"" for path in map(self._path, keys)]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key.replace('/', '-')}.value"


def number_of_start() -> str:
    """What keeps apart the keys of one start and of the next; before ranks have met, as far as this node can tell."""
    if _number is not None:
        return str(_number)
    return f"before-{os.environ['TORCHELASTIC_RESTART_COUNT']}" if "TORCHELASTIC_RESTART_COUNT" in os.environ else "0"


def meet(timeout: timedelta) -> tuple[Any, int, int]:
    """The store of this start (a `torch.distributed.Store`), this rank and the number of ranks; collective.

    Raises:
        TrainingError: the ranks have not come together in `timeout`.
    """
    import torch.distributed as dist

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    folder = worker_folder()
    if world == 1:
        return dist.HashStore(), rank, world
    if folder is not None:
        return dist.FileStore(str(folder / "store"), world), rank, world
    set_interface()
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))
    base = store.underlying_store if isinstance(store, dist.PrefixStore) else store
    global _number
    _number = agree_on_start(base, rank, world, timeout)
    return dist.PrefixStore(f"recpipe/start-{_number}", base), rank, world


def agree_on_start(store: Any, rank: int, world: int, timeout: timedelta) -> int:
    """The number of this start, the same on all ranks that began together; collective.

    Every rank repeats a word that was never used, with a count. Rank 0 waits until it has seen each rank count on with a word
    that the last start did not have: so none of them is a rank of an earlier start. Then it tells each the number.

    Args:
        store: shared by all ranks, and perhaps by those of earlier starts.
    """
    me, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank == 0:
        return _gather(store, me, world, deadline)
    for count in itertools.count():
        store.set(_new(rank), f"{me} {count}")
        if store.check([_start_of(me)]):
            return int(store.get(_start_of(me)))
        if time.monotonic() > deadline:
            raise TrainingError("rank 0 has not come within launch.timeout_seconds; it is gone, or stands still")
        time.sleep(_POLL_SECONDS)
    raise AssertionError("unreachable")


def _gather(store: Any, me: str, world: int, deadline: float) -> int:
    """Waits for ranks 1 and up, and tells each the next number."""
    number, last = json.loads(store.get(_MEMBERS)) if store.check([_MEMBERS]) else (-1, [])
    first: dict[int, str] = {}
    words: dict[int, str] = {0: me}
    while len(words) < world:
        for rank in set(range(world)) - words.keys():
            said = store.get(_new(rank)).decode() if store.check([_new(rank)]) else ""
            word = said.partition(" ")[0]
            if word and word not in last and said != first.setdefault(rank, said):
                words[rank] = word
        if len(words) < world and time.monotonic() > deadline:
            missing = sorted(set(range(world)) - words.keys())
            raise TrainingError(f"of {world} ranks, {missing[:8]} have not come within launch.timeout_seconds")
        time.sleep(_POLL_SECONDS)
    store.set(_MEMBERS, json.dumps([number + 1, list(words.values())]))
    for word in words.values():
        store.set(_start_of(word), str(number + 1))
    return int(number) + 1


def _new(rank: int) -> str:
    return f"recpipe/new/{rank}"


def _start_of(word: str) -> str:
    return f"recpipe/start-of/{word}"


def board(timeout_seconds: float) -> Store | None:
    """A place for short words between ranks that no other call waits in; None if there is none."""
    folder = worker_folder()
    return FolderStore(folder) if folder is not None else connect(timeout_seconds)


def connect(timeout_seconds: float) -> Any:
    """A connection of its own to the store at MASTER_ADDR; None if nobody answers."""
    from torch.distributed import TCPStore

    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, KeyError, ValueError):
        return None
