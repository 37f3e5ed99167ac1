"""From files to checked batches. Names are imported when they are used, so that preparing files needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recpipe.data.check import Policy, check_batch
    from recpipe.data.dataset import Dataset
    from recpipe.data.loader import Loader
    from recpipe.data.open import open_dataset, prepare_dataset

__all__ = ["Dataset", "Loader", "Policy", "check_batch", "open_dataset", "prepare_dataset"]

_HOMES = {
    "Dataset": "dataset",
    "Loader": "loader",
    "Policy": "check",
    "check_batch": "check",
    "open_dataset": "open",
    "prepare_dataset": "open",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
