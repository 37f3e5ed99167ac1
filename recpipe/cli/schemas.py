"""Registers a typed record behind every command's settings with Hydra, and the primary configuration that uses it.

The root record types everything but `data` and `model`, whose type depends on the choice: for those there is a record
per option, merged below the YAML file of that option.
"""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore

_WRITES_HYDRA_DIR = ("simulate",)


def primary(module: ModuleType, name: str) -> str:
    """Registers the command's records; gives the name of its primary configuration."""
    store = ConfigStore.instance()
    root = f"recpipe_{name}"
    store.store(name=f"{root}_schema", node=module.SCHEMA)
    defaults: list[Any] = [f"{root}_schema"]
    known = {field.name for field in fields(module.SCHEMA)}
    for group, records in _records().items():
        if group not in known:
            continue
        for option, record in records.items():
            store.store(group=f"{root}_{group}", name=option, node=record)
        defaults.append({f"optional {root}_{group}@{group}": f"${{{group}}}"})
    defaults += [
        module.CONFIG,
        "_self_",
        {"override hydra/job_logging": "none"},
        {"override hydra/hydra_logging": "none"},
    ]
    store.store(name=root, node={"defaults": defaults, "hydra": _hydra_settings(name)})
    return root


def _records() -> dict[str, dict[str, type]]:
    from recpipe.data.config import SCHEMAS as DATA
    from recpipe.model.config import SCHEMAS as MODEL

    return {"data": dict(DATA), "model": dict(MODEL)}


def _hydra_settings(name: str) -> dict[str, Any]:
    """Hydra makes no directory: rank 0 of a run does. Sweeps and simulations keep a place for their files."""
    stamp = "${now:%Y%m%d-%H%M%S}"
    return {
        "output_subdir": None,
        "job": {"chdir": False, "name": f"recpipe_{name}"},
        "run": {"dir": f"runs/{name}/{stamp}" if name in _WRITES_HYDRA_DIR else "."},
        "sweep": {"dir": f"runs/{name}/multirun-{stamp}", "subdir": "${hydra.job.num}"},
    }
