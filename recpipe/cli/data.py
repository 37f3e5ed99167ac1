"""``recpipe data``: prepare files, look into a prepared directory, check it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recpipe.errors import ConfigError, nearest
from recpipe.escapes import printable

CONFIG = None
HELP = "Prepare, inspect and verify data: recpipe data prepare source=FILE out=DIR | inspect DIR | verify DIR."
# Short names that people know from other tools.
ALIASES = {"source": "data.path", "out": "data.out"}
FLAGS = {"--json": "json=true"}


@dataclass
class DataCommandConfig:
    """Root of ``conf/data_command.yaml``.

    Args:
        action: prepare, inspect, verify, export or import.
        path: the prepared directory of inspect, verify and export, the new one of import.
        json: print JSON.
        data: a data group.
        npy_dir: directory of .npy files, written by export, read by import.
    """

    action: str = ""
    path: str = ""
    json: bool = False
    data: Any = None
    npy_dir: str = ""


SCHEMA = DataCommandConfig


def main(arguments: Any) -> int:
    """Turns the words of the command line into settings, then runs the action. Returns the exit code."""
    from recpipe.cli.app import run_command

    command = SimpleNamespace(CONFIG="data_command", SCHEMA=SCHEMA, HELP=HELP, main=run)
    return run_command(command, "data", as_overrides(arguments))  # type: ignore[arg-type]


def as_overrides(arguments: Sequence[str]) -> list[str]:
    """`prepare source=a --json` as `action=prepare data.path=a json=true`."""
    words = [word for word in arguments if "=" not in word and not word.startswith("-")]
    rest = [word for word in arguments if word not in words]
    if len(words) > 2:
        raise ConfigError(
            f"recpipe data takes an action and a directory, not {' '.join(words)}; a name with '=' needs quotes"
        )
    named = [f"{key}='{word}'" for key, word in zip(("action", "path"), words, strict=False)]
    return [*named, *(FLAGS.get(word) or _long_name(word) for word in rest)]


def _long_name(word: str) -> str:
    """The setting behind a short name."""
    key, equals, value = word.partition("=")
    return f"{ALIASES[key]}{equals}{value}" if equals and key in ALIASES else word


def run(cfg: Any) -> int:
    """Runs one action. Returns the exit code."""
    actions: dict[str, Callable[[Any], int]] = {
        "prepare": _prepare,
        "inspect": _inspect,
        "verify": _verify,
        "export": _export,
        "import": _import,
    }
    if cfg.action not in actions:
        asked = f"{cfg.action}: no such action" if cfg.action else "recpipe data needs an action"
        raise ConfigError(f"{asked}; {nearest(cfg.action, actions)}")
    return actions[cfg.action](cfg)


def _prepare(cfg: Any) -> int:
    """Files to a prepared directory."""
    from recpipe.data.prepare.job import prepare
    from recpipe.data.prepared import read_manifest

    if cfg.path:
        raise ConfigError(f"recpipe data prepare reads source=FILE-or-DIR; write source={cfg.path}")
    if cfg.data.name not in ("criteo", "table"):
        raise ConfigError(f"recpipe data prepare reads files: data=criteo or data=table, not data={cfg.data.name}")
    with _bar() as report:
        out = prepare(cfg.data, lambda line: print(line, file=sys.stderr), report)
    for warning in read_manifest(out)["provenance"]["warnings"]:
        print(f"WARNING: {printable(warning)}", file=sys.stderr)
    print(out)
    return 0


@contextmanager
def _bar() -> Iterator[Any]:
    """A progress bar on a terminal; None elsewhere, where lines are logged."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, Any] = {}

        def report(progress: Any) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = shown.add_task(progress.phase, total=1.0, pace="")
            pace = f"{progress.rows:,} rows, {progress.rows / max(progress.seconds, 1e-9):,.0f} a second"
            shown.update(tasks[progress.phase], completed=progress.share, pace=pace)

        yield report


def _inspect(cfg: Any) -> int:
    """The manifest, for people or as JSON."""
    from recpipe.data.inspect import render
    from recpipe.data.paths import to_path
    from recpipe.data.prepared import read_manifest

    manifest = read_manifest(to_path(_named(cfg)))
    print(json.dumps(manifest, indent=1) if cfg.json else printable(render(manifest)))
    return 0


def _verify(cfg: Any) -> int:
    """Counts and checksums again."""
    from recpipe.data.verify import verify_directory

    directory = _directory(cfg)
    problems = verify_directory(directory)
    if cfg.json:
        print(json.dumps({"directory": str(directory), "problems": problems}))
    else:
        print(printable("\n".join(problems)) if problems else f"{directory}: all counts and checksums are right")
    return 1 if problems else 0


def _export(cfg: Any) -> int:
    """A prepared directory as day_N .npy files."""
    from recpipe.data.npy_export import export_days

    print(export_days(_directory(cfg), _npy_dir(cfg), cfg.data))
    return 0


def _import(cfg: Any) -> int:
    """day_N .npy files as a prepared directory."""
    from recpipe.data.npy_import import import_days

    print(import_days(_npy_dir(cfg), _directory(cfg)))
    return 0


def _named(cfg: Any) -> str:
    """The directory that the action is about, as it was given."""
    if not cfg.path:
        raise ConfigError(f"recpipe data {cfg.action} needs a directory: recpipe data {cfg.action} DIR")
    return str(cfg.path)


def _directory(cfg: Any) -> Path:
    """The same, local."""
    if "://" in _named(cfg):
        raise ConfigError(f"recpipe data {cfg.action} works on a local directory; copy {cfg.path} first")
    return Path(cfg.path).expanduser()


def _npy_dir(cfg: Any) -> Path:
    """The directory of .npy files."""
    if not cfg.npy_dir:
        raise ConfigError(f"recpipe data {cfg.action} needs npy_dir=DIR")
    return Path(cfg.npy_dir).expanduser()
