"""From settings to the program that a run executes."""

from __future__ import annotations

from dataclasses import replace

from recpipe.errors import ScheduleError
from recpipe.runtime.order import STEPS
from recpipe.schedule.assemble import complete
from recpipe.schedule.auto import Scope, Setting, choose
from recpipe.schedule.families import build
from recpipe.schedule.ir import Program
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.settings import CostSettings, ScheduleSettings, to_cost, to_request

AUTO = "auto"


def build_program(settings: ScheduleSettings, cost: CostSettings, stages: int, lanes: int) -> Program:
    """The program of a few steps that `step_order` cuts a rank's order from.

    Args:
        settings: of the schedule.
        cost: what `auto` and the families that look at costs go by.
        stages: ranks of one pipeline.
        lanes: data-parallel copies of it.

    Raises:
        ScheduleError: the family cannot meet the request.
    """
    if settings.fill:
        raise ScheduleError("schedule.fill=true: the order it gives is for one step of a simulation; runs do not use it")
    settings = replace(settings, microbatches=settings.microbatches or default_microbatches(settings.name, stages))
    prices = to_cost(cost)
    request = to_request(settings, stages, prices)
    exchange = Exchange(settings.embedding, settings.buffers)
    if settings.name == AUTO:
        scope = Scope((), tuple(settings.try_microbatches), tuple(settings.try_chunks), settings.copies)
        return choose(request, Setting(exchange, STEPS, lanes, False), scope)[0]
    # A family that lets weights lag over several steps runs them one by one here.
    compute = replace(build(settings.name, request), lag=0)
    return complete(compute, request, exchange, STEPS, lanes)


def default_microbatches(name: str, stages: int) -> int:
    """Enough for a pipeline to fill; one where there is no pipeline."""
    if name == "cyclic" or stages == 1:
        return stages
    return 2 * stages
