"""``recpipe checkpoint``: what is in a checkpoint, is it whole, rewrite it, average several, take the weights elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recpipe.errors import ConfigError, nearest
from recpipe.escapes import printable, shown

CONFIG = "checkpoint"
HELP = "Look into checkpoints: recpipe checkpoint inspect|verify|convert|export|average DIR."


@dataclass
class CheckpointCommandConfig:
    """Root of ``conf/checkpoint.yaml``.

    Args:
        action: inspect, verify, convert, export or average.
        path: the checkpoint, or the directory of a run: its newest whole one (verify: all of them).
        out: what is written: a directory (convert, average), a file (export ending in .safetensors) or a directory (export
            of a model to serve).
        parts: convert: number of files, one for each rank that will read it.
        inputs: average: the other checkpoints.
        json: print JSON.
    """

    action: str = ""
    path: str = ""
    out: str = ""
    parts: int = 1
    inputs: list[str] = field(default_factory=list)
    json: bool = False


SCHEMA = CheckpointCommandConfig


def main(cfg: Any) -> int:
    """Runs one action. Returns the exit code."""
    actions: dict[str, Callable[[Any], int]] = {
        "inspect": _inspect,
        "verify": _verify,
        "convert": _convert,
        "export": _export,
        "average": _average,
    }
    if cfg.action not in actions:
        asked = f"{cfg.action}: no such action" if cfg.action else "recpipe checkpoint needs an action"
        raise ConfigError(f"{asked}; {nearest(cfg.action, actions)}")
    if not cfg.path:
        raise ConfigError(f"recpipe checkpoint {cfg.action} needs a checkpoint: recpipe checkpoint {cfg.action} DIR")
    return actions[cfg.action](cfg)


def _inspect(cfg: Any) -> int:
    """What is in it."""
    from recpipe.train.checkpoint_convert import summary
    from recpipe.train.report import one_line

    found = summary(_chosen(cfg.path))
    if cfg.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{found['folder']}: step {found['step']}, epoch {found['epoch']}, row {found['row']:,}")
    print(f"written by {found['world_size']} ranks, {found['bytes']:,} bytes in {len(found['files'])} files")
    print(
        f"dense weights: {found['dense_weights']:,}; state of a table row: {', '.join(found['table_state']) or 'none'}"
    )
    for name, shape in found["tables"].items():
        print(f"  {shown(name):<16}{shape[0]:>14,} x {shape[1]}")
    print("best validation: " + (one_line(found["metrics"]) if found["metrics"] else "none yet"))
    print("versions: " + ", ".join(f"{shown(key)} {shown(value)}" for key, value in found["versions"].items()))
    return 0


def _verify(cfg: Any) -> int:
    """Checksums again."""
    from recpipe.train.checkpoint_manifest import checkpoints_in, find_damage

    folder = Path(cfg.path)
    chosen = checkpoints_in(folder / "checkpoints") or [folder]
    problems = {str(one): list(find_damage(one)) for one in chosen}
    if cfg.json:
        print(json.dumps(problems, indent=1))
    else:
        for name, found in problems.items():
            print(printable("\n".join(found)) if found else f"{name}: whole")
    return 1 if any(problems.values()) else 0


def _convert(cfg: Any) -> int:
    """The same content in other files."""
    from recpipe.train.checkpoint_convert import convert

    if cfg.parts < 1:
        raise ConfigError(f"parts={cfg.parts}: must be at least 1")
    convert(_chosen(cfg.path), _out(cfg), cfg.parts)
    print(f"wrote {cfg.out}")
    return 0


def _export(cfg: Any) -> int:
    """Weights as plain tensors in one file, or a model to serve in a directory."""
    from recpipe.train.checkpoint_convert import export

    if _out(cfg).suffix == ".safetensors":
        names = export(_chosen(cfg.path), _out(cfg))
        print(f"wrote {len(names)} tensors to {cfg.out}")
        return 0
    from recpipe.train.serving import export_model

    export_model(_chosen(cfg.path), _out(cfg))
    print(f"wrote {cfg.out}; score with recpipe.train.serving.ServedModel")
    return 0


def _average(cfg: Any) -> int:
    """The mean of several."""
    from recpipe.train.checkpoint_convert import average

    if not cfg.inputs:
        raise ConfigError("recpipe checkpoint average needs more than one: DIR 'inputs=[DIR,DIR]'")
    average([*map(_chosen, cfg.inputs), _chosen(cfg.path)], _out(cfg))
    print(f"wrote {cfg.out}")
    return 0


def _chosen(path: str) -> Path:
    """The checkpoint that is meant; says which where a run was given."""
    from recpipe.train.checkpoint_manifest import MANIFEST, newest_whole

    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        folder = newest_whole(folder)
        print(f"checkpoint: {folder}", file=sys.stderr)
    return folder


def _out(cfg: Any) -> Path:
    if not cfg.out:
        raise ConfigError(f"recpipe checkpoint {cfg.action} needs out=...")
    return Path(cfg.out)
