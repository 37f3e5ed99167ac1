"""What is said of a run whose settings are right and yet may not do what their user thinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from recpipe.embedding.layout import TableLayout
from recpipe.schedule.families import FAMILIES


def remarks(cfg: Any, chosen: str, layouts: Sequence[TableLayout], num_valid: int) -> Iterator[str]:
    """One line each.

    Args:
        cfg: `recpipe.train.config.TrainConfig`.
        chosen: family of the program.
        layouts: of the tables.
        num_valid: validation rows.
    """
    name = cfg.schedule.name
    if name == "auto":
        yield f"schedule=auto: runs {chosen}"
    elif FAMILIES[name].executed:
        yield FAMILIES[name].executed
    pooled = sum(one.exchange == "pooled" for one in layouts)
    for key, value in (
        ("schedule.embedding", cfg.schedule.embedding),
        ("exchange.wire_dtype", cfg.exchange.wire_dtype),
    ):
        if 0 < pooled < len(layouts) and value in ("ahead", "spread", "bfloat16"):
            yield f"{key}={value} has no effect on {pooled} of {len(layouts)} tables: those of exchange=pooled"
    if not num_valid and (cfg.early_stopping.patience or cfg.checkpoint.keep_best):
        yield "WARNING: there are no validation rows: early_stopping and checkpoint.keep_best do nothing"
