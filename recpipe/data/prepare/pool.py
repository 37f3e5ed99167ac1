"""Threads that stop at the first error. Parsing, counting and writing release the interpreter lock, so threads do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_all(task: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Results in the order of the items; the first error, or Ctrl-C, cancels what has not begun."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="recpipe-prepare")
    try:
        futures = [pool.submit(task, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in futures]
    finally:
        # After an error or Ctrl-C, only what has begun comes to its end.
        pool.shutdown(cancel_futures=True)
