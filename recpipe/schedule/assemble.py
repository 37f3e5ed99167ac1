"""From a request to a complete program: the family's order, then the passes, in the one order that fits them."""

from __future__ import annotations

from dataclasses import replace

from recpipe.errors import ScheduleError
from recpipe.schedule.families import build
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Program
from recpipe.schedule.passes.embedding import Exchange, add_exchange
from recpipe.schedule.passes.fill import fill_bubbles
from recpipe.schedule.passes.messages import add_messages
from recpipe.schedule.passes.reduce import add_updates
from recpipe.schedule.passes.unroll import unroll

MAX_PASSES = 2**20
"""Forward passes of a program; each becomes a dozen actions of some hundred bytes."""


def assemble(
    name: str, request: Request, exchange: Exchange = Exchange(), steps: int = 1, lanes: int = 1, fill: bool = False
) -> Program:
    """Build family `name` and place everything around its compute.

    Args:
        exchange: how table rows travel.
        steps: optimizer steps in the program.
        lanes: identical data-parallel copies (``mesh.replicas``).
        fill: move table work into bubbles, by simulation with ``request.cost``.

    Raises ScheduleError when the family cannot meet the request.
    """
    check_size(request, steps)
    return complete(build(name, request), request, exchange, steps, lanes, fill)


def check_size(request: Request, steps: int) -> None:
    """Raises ScheduleError for a program that has more actions than anybody can mean, before any is made."""
    microbatches = request.ranks * request.chunks * request.microbatches * steps
    if microbatches > MAX_PASSES:
        raise ScheduleError(
            f"mesh.stages={request.ranks:,} x schedule.microbatches={request.microbatches:,} x "
            f"schedule.chunks={request.chunks:,} x steps={steps:,} are {microbatches:,} forward passes; "
            f"{MAX_PASSES:,} are the most"
        )


def complete(
    compute: Program, request: Request, exchange: Exchange = Exchange(), steps: int = 1, lanes: int = 1, fill: bool = False
) -> Program:
    """The passes of `assemble` on a compute order that is already there."""
    program = replace(unroll(compute, steps), lanes=lanes, lag=compute.lag if steps > 1 else 0)
    program = add_messages(add_exchange(add_updates(program), exchange))
    if not fill or exchange.mode == "none":
        return program
    return fill_bubbles(program, request.cost.scaled(microbatch_ratio(program, request)))


def microbatch_ratio(program: Program, request: Request) -> float:
    """Size of a microbatch of `program` over the size the costs of `request` speak of."""
    return request.microbatches / (program.microbatches * program.placement.num_replicas)
