"""Blocks, towers as ordered lists of blocks, boundaries between stages, and the loss.

Names are looked up when used, so that `recpipe.model.config` can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recpipe.model.block import Block as Block
    from recpipe.model.block import run_blocks as run_blocks
    from recpipe.model.boundaries import BoundarySpec as BoundarySpec
    from recpipe.model.build import build_model as build_model
    from recpipe.model.context import StepContext as StepContext
    from recpipe.model.loss import summed_bce as summed_bce
    from recpipe.model.model import Model as Model
    from recpipe.model.partition import partition_by_cost as partition_by_cost
    from recpipe.model.partition import partition_by_name as partition_by_name
    from recpipe.model.rows import RowInit as RowInit
    from recpipe.model.rows import init_rows as init_rows

_HOMES = {
    "Block": "block",
    "run_blocks": "block",
    "BoundarySpec": "boundaries",
    "build_model": "build",
    "StepContext": "context",
    "summed_bce": "loss",
    "Model": "model",
    "partition_by_cost": "partition",
    "partition_by_name": "partition",
    "RowInit": "rows",
    "init_rows": "rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
