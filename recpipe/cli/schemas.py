"""Registers a typed record behind every command's settings with Hydra, and the primary configuration that uses it.

The root record types everything but `data` and `model`, whose type depends on the choice: for those there is a record
per option, merged below the YAML file of that option.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from recpipe.cli.conf import groups, options, required
from recpipe.errors import ConfigError, nearest

# Commands that write where Hydra says; the others' directories are made by rank 0 of a run.
_WRITES_HYDRA_DIR = ("simulate", "plan")


def primary(module: ModuleType, name: str, folder: Path) -> str:
    """Registers the command's records; gives the name of its primary configuration."""
    store = ConfigStore.instance()
    root = f"recpipe_{name}"
    schema = _typed(module.SCHEMA)
    for key in required(folder, module.CONFIG):
        schema[key] = MISSING
    store.store(name=f"{root}_schema", node=schema)
    defaults: list[Any] = [f"{root}_schema"]
    known = {field.name for field in fields(module.SCHEMA)}
    for group, by_name in records().items():
        if group not in known:
            continue
        for option, record in by_name.items():
            store.store(group=f"recpipe_schema/{group}", name=option, node=_typed(record))
        defaults.append({f"optional recpipe_schema/{group}@{group}": f"${{{group}}}"})
    defaults += [module.CONFIG, "_self_"]
    defaults += [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
    store.store(name=root, node={"defaults": defaults, "hydra": _hydra_settings(module, name, folder)})
    return root


def records() -> dict[str, dict[str, type]]:
    """Records of the groups whose type depends on the choice: group -> option -> record."""
    from recpipe.data.config import SCHEMAS as DATA
    from recpipe.model.config import SCHEMAS as MODEL

    return {"data": dict(DATA), "model": dict(MODEL)}


def complete(cfg: DictConfig) -> None:
    """Puts the record that its `name` asks for behind a group whose choice is a file of the user's own.

    Raises:
        ConfigError: the file names none.
    """
    for group, by_name in records().items():
        node = cfg.get(group)
        if not isinstance(node, DictConfig) or is_dataclass(OmegaConf.get_type(node)):
            continue
        kind = str(node.get("name"))
        if kind not in by_name:
            raise ConfigError(f"{group}.name={kind}: a {group} file names its kind; {nearest(kind, by_name)}")
        with open_dict(cfg):
            cfg[group] = OmegaConf.merge(_typed(by_name[kind]), node)


def _typed(record: type) -> DictConfig:
    node: DictConfig = OmegaConf.structured(record)
    _open_mappings(node)
    return node


def _open_mappings(node: DictConfig) -> None:
    """A field that is a mapping takes any name, as ``tables.per_table={t_cat_0: row_wise}``; records do not."""
    if OmegaConf.get_type(node) is dict:
        OmegaConf.set_struct(node, False)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            _open_mappings(child)


def _hydra_settings(module: ModuleType, name: str, folder: Path) -> dict[str, Any]:
    stamp = "${now:%Y%m%d-%H%M%S}"
    return {
        "output_subdir": None,
        "job": {"chdir": False, "name": f"recpipe_{name}"},
        "run": {"dir": f"runs/{name}/{stamp}" if name in _WRITES_HYDRA_DIR else "."},
        "sweep": {"dir": f"runs/{name}/multirun-{stamp}", "subdir": "${hydra.job.num}"},
        "help": {"app_name": f"recpipe {name}", "template": _help_text(module, name, folder)},
    }


def _help_text(module: ModuleType, name: str, folder: Path) -> str:
    """What ``recpipe COMMAND --help`` shows; Hydra puts the composed settings in place of $CONFIG."""
    lines = [f"recpipe {name}: {module.HELP}", "", f"usage: recpipe {name} [key=value ...] [--cfg job] [--multirun]"]
    chosen = groups(folder, module.CONFIG)
    if chosen:
        lines += ["", "groups, chosen as group=option:"]
        lines += [f"  {group}: {', '.join(options(folder, group)) or '(none yet)'}" for group in chosen]
    lines += ["", "settings, changed as key=value (a key inside another as outer.inner=value):", "", "$CONFIG", ""]
    lines += ["Quote lists and texts for the shell: 'key=[1,2]' 'key=\"a b=c\"'"]
    return "\n".join(lines)
