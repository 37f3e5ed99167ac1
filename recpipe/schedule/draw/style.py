"""What both drawings agree on: the colour of each op and the label of an action."""

from __future__ import annotations

from recpipe.schedule.ir import WHOLE_STEP, Action, Op

PALETTE: dict[Op, str] = {
    Op.F: "#4c78a8",
    Op.B: "#54a24b",
    Op.I: "#72b7b2",
    Op.W: "#eeca3b",
    Op.OPT: "#9d755d",
    Op.R: "#e45756",
    Op.ED: "#d6a5c9",
    Op.PL: "#b279a2",
    Op.PO: "#c99bbd",
    Op.EL: "#b279a2",
    Op.EO: "#c99bbd",
    Op.EG: "#ff9da6",
    Op.EU: "#8c5a83",
    Op.DG: "#ff9da6",
    Op.DU: "#8c5a83",
    Op.SA: "#a0b8d0",
    Op.RA: "#a0b8d0",
    Op.SG: "#a9cfa5",
    Op.RG: "#a9cfa5",
}

NAMES: dict[Op, str] = {
    Op.F: "forward",
    Op.B: "backward",
    Op.I: "backward, input",
    Op.W: "backward, weights",
    Op.OPT: "optimizer",
    Op.R: "reduce",
    Op.ED: "route ids",
    Op.PL: "look up early",
    Op.PO: "rows, early",
    Op.EL: "look up",
    Op.EO: "rows",
    Op.EG: "row gradients",
    Op.EU: "update tables",
    Op.DG: "row gradients, deferred",
    Op.DU: "update tables, deferred",
    Op.SA: "activation",
    Op.RA: "activation",
    Op.SG: "gradient",
    Op.RG: "gradient",
}


def short(action: Action) -> str:
    """Label inside a box: the microbatch for F, B, I, W, else the op."""
    return action.op.value if action.microbatch == WHOLE_STEP else str(action.microbatch)
