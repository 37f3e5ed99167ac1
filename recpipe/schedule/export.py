"""Write a program as the CSV that torch's own pipeline runtime reads, one rank a line."""

from __future__ import annotations

from recpipe.errors import ScheduleError
from recpipe.schedule.ir import COMPUTE_OPS, Action, Op, Program

_MESSAGES = {Op.SA: "SEND_F", Op.RA: "RECV_F", Op.SG: "SEND_B", Op.RG: "RECV_B"}


def torch_csv(program: Program, messages: bool = False) -> str:
    """Step 0 of a program with one replica.

    Args:
        messages: with this project's sends and receives (torch's ``compute_comms``); otherwise compute only, and torch
            places its own.

    Raises ScheduleError for several replicas, which that runtime cannot run.
    """
    if program.placement.num_replicas > 1:
        raise ScheduleError(f"{program.name} has {program.placement.num_replicas} replicas; torch's runtime runs one.")
    rows = ([_cell(action, messages) for action in order if action.step == 0] for order in program.orders)
    return "\n".join(",".join(cell for cell in row if cell) for row in rows) + "\n"


def _cell(action: Action, messages: bool) -> str:
    if action.op in COMPUTE_OPS:
        return f"{action.stage}{action.op}{action.microbatch}"
    if action.op is Op.OPT and messages:  # where that runtime divides the summed gradient by the microbatches
        return f"{action.stage}REDUCE_GRAD"
    name = _MESSAGES.get(action.op) if messages else None
    return f"{action.stage}{name}{action.microbatch}" if name else ""
