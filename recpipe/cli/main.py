"""The ``recpipe`` program: picks the command, shows help, turns errors into one message and an exit code.

Nothing here imports torch or hydra, so help is quick and ``recpipe doctor`` runs in a broken environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from recpipe import __version__
from recpipe.cli.commands import COMMANDS, help_line, load
from recpipe.cli.ctrl_c import ends_by_ctrl_c
from recpipe.cli.failure import EXIT_CONFIG, guarded
from recpipe.errors import ConfigError, nearest
from recpipe.train.launch import found_workers
from recpipe.train.launch_local import start_early
from recpipe.train.warm import note_start

# Commands that start workers.
WARM = ("train", "eval", "score", "verify", "profile")
USAGE = """usage: recpipe COMMAND [key=value ...]
       recpipe COMMAND --help | --cfg job | --multirun key=a,b
       recpipe --help | --version

commands:
"""
AFTER = """
Settings are Hydra overrides: recpipe train model=dcn_v2 data=criteo data.path=FILE launch.nproc=4
Every setting of a command and its groups: recpipe COMMAND --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code: 0, 1 for failures, 2 for wrong settings, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0 if arguments else EXIT_CONFIG
    if arguments[0] in ("-V", "--version"):
        print(f"recpipe {__version__}")
        return 0
    with ends_by_ctrl_c():
        return guarded(_runner(arguments[0], arguments[1:]))


def _help() -> str:
    lines = [f"  {name:<12}{help_line(name)}\n" for name in COMMANDS]
    return USAGE + "".join(lines) + AFTER


def _runner(name: str, arguments: list[str]) -> Callable[[], int]:
    def run() -> int:
        if name not in COMMANDS:
            raise ConfigError(f"{name}: no such command; {nearest(name, COMMANDS)}")
        note_start()
        module = load(name)
        if name in WARM and not _runs_alone(arguments):
            start_early()
        if module.CONFIG is None:
            return int(module.main(arguments))
        from recpipe.cli.app import run_command

        return run_command(module, name, arguments)

    return run


def _runs_alone(arguments: Sequence[str]) -> bool:
    """Whether no local workers will be started, as far as words can tell."""
    return found_workers(os.environ) is not None or any(w.startswith("-") or w == "launch.nproc=1" for w in arguments)


if __name__ == "__main__":
    sys.exit(main())
