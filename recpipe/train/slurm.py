"""torch's variables from those of SLURM: one worker a task."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Variables for this task; None outside SLURM. MASTER_ADDR and MASTER_PORT that are set stay."""
    if "SLURM_PROCID" not in environ or "SLURM_NTASKS" not in environ:
        return None
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    port = _FIRST_PORT + int(environ.get("SLURM_JOB_ID", "0")) % _NUM_PORTS
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_NTASKS"],
        "LOCAL_RANK": environ.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": environ.get("MASTER_ADDR", first_node(nodes)),
        "MASTER_PORT": environ.get("MASTER_PORT", str(port)),
    }


def first_node(nodes: str) -> str:
    """First name of a SLURM node list: ``gpu[03-05,9],cpu1`` gives ``gpu03``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^\[,]*))?", nodes)
    assert match is not None, nodes
    return "".join(part or "" for part in match.groups())
