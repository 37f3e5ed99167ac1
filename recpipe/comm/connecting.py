"""Making process groups without gloo's own lines on the terminal.

While ranks connect, gloo prints a line for every attempt that fails, whatever the log level. When a rank has left, these lines
stand before the error of that rank, which is the cause. The error that gloo raises says the same as its lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_GLOO = b"third_party/gloo/"


def join(store: Any, rank: int, world: int, timeout: timedelta) -> None:
    """Makes the default group; collective.

    Args:
        store: a `torch.distributed.Store` that all ranks share.
    """
    with without_lines_of_gloo():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)


def new_group(ranks: list[int] | None = None) -> dist.ProcessGroup:
    """A group over some ranks or all; collective."""
    with without_lines_of_gloo():
        return dist.new_group(ranks, backend="gloo")


@contextmanager
def without_lines_of_gloo() -> Iterator[None]:
    """Keeps gloo's lines from stderr; whatever else is printed there meanwhile is printed at the end."""
    sys.stderr.flush()
    try:
        terminal = os.dup(2)
    except OSError:  # This process has no stderr.
        yield
        return
    kept = os.memfd_create("stderr")
    os.dup2(kept, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        with os.fdopen(kept, "rb") as file:
            file.seek(0)
            for line in file:
                if _GLOO not in line:
                    os.write(2, line)
