"""A thread that runs short tasks one after another beside its owner, and ends with it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]


class Aside:
    """Tasks of one lane, in the order in which they were given. A task keeps its errors for whoever waits for its result.

    Args:
        name: of the thread, which starts with the first task.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Task | None] | None = None

    def run(self, task: Task) -> None:
        """Has `task` run after those before it."""
        if self._tasks is None:
            self._tasks = SimpleQueue()
            weakref.finalize(self, self._tasks.put, None)
            # Not an executor: its threads are joined at exit, and one may wait for a rank that is gone.
            threading.Thread(target=_run_all, args=(self._tasks,), name=self._name, daemon=True).start()
        self._tasks.put(task)


def _run_all(tasks: SimpleQueue[Task | None]) -> None:
    """Until the owner is gone."""
    for task in iter(tasks.get, None):
        task()
        del task  # It holds process groups, which must not outlive the run.
