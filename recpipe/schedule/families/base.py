"""What a family is: a function from a request to the compute order of one step.

A family orders F, B, I and W only. Messages, reductions, optimizers and table exchanges are placed by `passes`, the
same way for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recpipe.errors import ScheduleError
from recpipe.schedule.cost import Cost
from recpipe.schedule.ir import Action, Op, Placement, Program

Orders = list[list[Action]]


@dataclass(frozen=True)
class Request:
    """What a user asks of a family.

    Args:
        ranks: ranks of one pipeline (``mesh.stages``).
        microbatches: microbatches of one step, all replicas of the lane together.
        chunks: pieces of the tower a rank runs, for the looped families.
        pipelines: pipelines of Chimera, both directions together.
        beyond: how Chimera goes past one unit: concatenate, double or halve.
        memory: activations a rank may hold, in microbatches of a rank's full share; None for no bound.
        cost: durations, for the families that look at them.
    """

    ranks: int
    microbatches: int
    chunks: int = 2
    pipelines: int = 2
    beyond: str = "concatenate"
    memory: float | None = None
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Family:
    """A registered family.

    Args:
        name: in the configuration.
        title: one line for tables.
        build: its builder.
        executed: what a run executes instead, where that is something else; empty: the family.
    """

    name: str
    title: str
    build: Callable[[Request], Program]
    executed: str = ""


def act(op: Op, stage: int, microbatch: int, replica: int = 0) -> Action:
    """A compute action of step 0."""
    return Action(op, stage, microbatch, replica, 0)


def linear(ranks: int) -> Placement:
    """Stage s on rank s."""
    return Placement((tuple(range(ranks)),))


def looped(ranks: int, chunks: int) -> Placement:
    """Stage c * ranks + r on rank r: every rank runs `chunks` pieces."""
    return Placement((tuple(stage % ranks for stage in range(ranks * chunks)),))


def folded(ranks: int) -> Placement:
    """The V: stages r and 2 * ranks - 1 - r on rank r, so that first and last stage share a rank."""
    return Placement(((*range(ranks), *reversed(range(ranks))),))


def both_ways(ranks: int) -> Placement:
    """Two directions: replica 0 runs down the ranks, replica 1 up."""
    return Placement((tuple(range(ranks)), tuple(reversed(range(ranks)))))


def one_step(name: str, placement: Placement, microbatches: int, orders: Sequence[Sequence[Action]]) -> Program:
    """A program of one step that holds compute actions only."""
    return Program(name, placement, microbatches, 1, tuple(tuple(order) for order in orders))


def keep_first(orders: Orders, microbatches: int) -> Orders:
    """Drop padding microbatches. Dropping whole microbatches removes dependencies and adds none."""
    return [[action for action in order if action.microbatch < microbatches] for order in orders]


def round_up(number: int, multiple: int) -> int:
    """Smallest multiple that is not below `number`."""
    return -(-number // multiple) * multiple


def refuse_microbatches(name: str, microbatches: int, multiple: int, least: int, why: str) -> None:
    """Raise ScheduleError, naming the nearest counts that do, unless `microbatches` fits.

    Args:
        multiple: the count must be a multiple of it.
        least: and not below this, itself a multiple.
        why: reason, for the message.
    """
    if microbatches >= least and microbatches % multiple == 0:
        return
    above = max(least, round_up(microbatches, multiple))
    below = microbatches // multiple * multiple
    nearest = f"{below} or {above}" if least <= below < above else f"{above} or {above + multiple}"
    raise ScheduleError(f"{name} cannot run {microbatches} microbatches: {why}. schedule.microbatches={nearest} would do.")
