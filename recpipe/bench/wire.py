"""Stands between recpipe and torch.distributed: records the messages of some steps, and plays them back.

Played to the trainer, what was received is there at once: its compute alone. Played to the network without a trainer, the same
messages have nothing to hide behind.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

NAMES = ("all_to_all_single", "all_reduce", "all_gather_single", "isend", "irecv")


@dataclass
class Call:
    """One collective or point-to-point message, as this rank issued it.

    Args:
        name: function of torch.distributed.
        group: its process group.
        step: in which recorded step.
        tensors: (elements, dtype) of its tensors.
        others: arguments behind the tensors: split sizes, or the other rank.
        received: what was there when it was waited for; None for what only leaves.
    """

    name: str
    group: Any
    step: int
    tensors: list[tuple[int, torch.dtype]]
    others: list[Any]
    received: torch.Tensor | None = None


@dataclass
class Tape:
    """The messages of `step` steps."""

    calls: list[Call] = field(default_factory=list)
    step: int = 0


class _Kept:
    """Work that leaves what it received on a tape."""

    def __init__(self, work: Any, call: Call, out: torch.Tensor) -> None:
        self._work, self._call, self._out = work, call, out

    def wait(self) -> bool:
        self._work.wait()
        if self._call.received is None and self._call.name != "isend":
            self._call.received = self._out.detach().clone()
        return True


class _There:
    """Work that was never to be done."""

    def wait(self) -> bool:
        return True


@contextmanager
def recording(tape: Tape) -> Iterator[None]:
    """Every message issued inside goes its way and is kept on `tape`; whoever runs steps counts `tape.step`."""

    def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def issue(*arguments: Any, group: Any = None, **options: Any) -> Any:
            tensors = [one for one in (*arguments, *options.values()) if isinstance(one, torch.Tensor)]
            others = [one for one in arguments if not isinstance(one, torch.Tensor)]
            call = Call(name, group, tape.step, [(one.numel(), one.dtype) for one in tensors], others)
            tape.calls.append(call)
            return _Kept(real(*arguments, group=group, **options), call, tensors[0])

        return issue

    with _standing_in(stand_in):
        yield


@contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """No message issued inside leaves; what `tape` has in its place is there at once, from its start and round and round."""
    stored: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in tape.calls:
        stored[call.name, id(call.group)].append(call)
    position: dict[tuple[str, int], int] = defaultdict(int)

    def stand_in(name: str, _: Callable[..., Any]) -> Callable[..., Any]:
        def issue(out: torch.Tensor, *_: Any, group: Any = None, **__: Any) -> _There:
            calls = stored[name, id(group)]
            call = calls[position[name, id(group)] % len(calls)]
            position[name, id(group)] += 1
            assert (out.numel(), out.dtype) == call.tensors[0], "these are not the steps that were recorded"
            if name != "isend" and out.numel():
                assert call.received is not None, "nobody waited for this message while it was recorded"
                out.detach().copy_(call.received)
            return _There()

        return issue

    with _standing_in(stand_in):
        yield


@contextmanager
def _standing_in(stand_in: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    real = {name: getattr(dist, name) for name in NAMES}
    for name, function in real.items():
        setattr(dist, name, stand_in(name, function))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


def replay(calls: Sequence[Call]) -> float:
    """Sends messages of the same sizes again, all of them at once, and waits for all; gives the seconds. Collective."""
    buffers = [[torch.zeros(numel, dtype=dtype) for numel, dtype in call.tensors] for call in calls]
    start = time.perf_counter()
    works = [_issue(call, tensors) for call, tensors in zip(calls, buffers, strict=True)]
    for work in works:
        work.wait()
    return time.perf_counter() - start


def _issue(call: Call, tensors: list[torch.Tensor]) -> Any:
    options = {"async_op": True} if call.name.startswith("all_") else {}
    return getattr(dist, call.name)(*tensors, *call.others, group=call.group, **options)
