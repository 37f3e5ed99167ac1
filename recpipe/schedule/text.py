"""The text form of actions and programs: one rank a line. Golden files, ``program.txt`` and diffs are this text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from recpipe.errors import ScheduleError
from recpipe.escapes import shown
from recpipe.schedule.ir import STEP_OPS, WHOLE_STEP, Action, Op, Placement, Program
from recpipe.untrusted import Source

_ACTION = re.compile(r"(?:(\d{1,9}):)?([A-Z]+)(\d{1,9})(?:\.(\d{1,9}))?(?:@(\d{1,9}))?", re.ASCII)
MAX_CHARACTERS, MAX_COUNT = 64 << 20, 2**20
_COUNTS = ("lanes", "microbatches", "steps", "lag", "stagger")


def parse_action(text: str) -> Action:
    """Read one action, for example ``1:F3.2@1``. Raises ScheduleError if it is not one."""
    match = _ACTION.fullmatch(text)
    if match is None or match[2] not in Op.__members__:
        known = " ".join(op.value for op in Op)
        raise ScheduleError(f"{shown(text)!r} is not an action. Write step:OPstage.microbatch@replica with one of {known}.")
    step, name, stage, microbatch, replica = match.groups()
    op = Op(name)
    if (op in STEP_OPS) != (microbatch is None):
        need = "no microbatch: it happens once a step" if op in STEP_OPS else "a microbatch, as in F3.2"
        raise ScheduleError(f"{text!r}: {name} takes {need}.")
    number = WHOLE_STEP if microbatch is None else int(microbatch)
    return Action(op, int(stage), number, int(replica or 0), int(step or 0))


def format_program(program: Program) -> str:
    """Write a program; `parse_program` reads it back equal."""
    place = program.placement
    lines = [f"schedule {program.name}"]
    lines += [f"{key} {getattr(program, key)}" for key in _COUNTS]
    lines.append(f"width {place.width}")
    lines.append(" ".join(["tables", *map(str, place.tables)]))
    lines += [f"replica {k}: {' '.join(map(str, row))}" for k, row in enumerate(place.ranks)]
    lines += [f"rank {r}: {_format_order(program, r)}".rstrip() for r in range(len(program.orders))]
    return "\n".join(lines) + "\n"


def _format_order(program: Program, rank: int) -> str:
    """Actions with spaces between, a fused pair with a plus."""
    text = "".join(f"{action}{'+' if action in program.fused else ' '}" for action in program.orders[rank])
    return text.rstrip()


def parse_program(text: str) -> Program:
    """Read a program. Lines that start with ``#`` are comments. Raises ScheduleError with the line number."""
    if len(text) > MAX_CHARACTERS:
        raise ScheduleError(f"the text has {len(text):,} characters; {MAX_CHARACTERS:,} are the most")
    head: dict[str, str] = {}
    rows: list[tuple[int, ...]] = []
    orders: list[tuple[Action, ...]] = []
    fused: set[Action] = set()
    for number, line in _lines(text):
        try:
            _read_line(line, head, rows, orders, fused)
        except ValueError as error:
            raise ScheduleError(f"line {number}: {error}") from error
    return _assemble(head, rows, orders, frozenset(fused))


def read_program(path: Path) -> Program:
    """Reads a program from a file. Raises ScheduleError."""
    return parse_program(Source(path, ScheduleError, large=True).text())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _read_line(
    line: str,
    head: dict[str, str],
    rows: list[tuple[int, ...]],
    orders: list[tuple[Action, ...]],
    fused: set[Action],
) -> None:
    key, _, rest = line.partition(" ")
    if key not in ("replica", "rank"):
        head[key] = rest
        return
    number, _, body = rest.partition(":")
    target: list[tuple[int, ...]] | list[tuple[Action, ...]] = rows if key == "replica" else orders
    if _count(number, key) != len(target):
        raise ValueError(f"{key} {number} comes where {key} {len(target)} is expected")
    if key == "replica":
        rows.append(tuple(_count(rank, "replica") for rank in body.split()))
    else:
        blocks = [[parse_action(text) for text in block.split("+")] for block in body.split()]
        orders.append(tuple(action for block in blocks for action in block))
        fused.update(action for block in blocks for action in block[:-1])


def _assemble(
    head: dict[str, str],
    rows: list[tuple[int, ...]],
    orders: list[tuple[Action, ...]],
    fused: frozenset[Action],
) -> Program:
    missing = [key for key in ("schedule", "width", "tables", *_COUNTS) if key not in head]
    unknown = [shown(key) for key in sorted(head.keys() - {"schedule", "width", "tables", *_COUNTS})[:5]]
    if missing or unknown or not rows:
        raise ScheduleError(f"not a program: missing lines {missing}, unknown lines {unknown}, {len(rows)} replicas.")
    if not all(rows):
        raise ScheduleError("not a program: a replica has no stages.")
    tables = tuple(_count(rank, "tables") for rank in head["tables"].split())
    place = Placement(tuple(rows), tables, _count(head["width"], "width"))
    if len({len(row) for row in rows}) != 1 or len(orders) != place.num_ranks:
        raise ScheduleError(f"{len(orders)} rank lines for {place.num_ranks} ranks, stages {list(map(len, rows))}.")
    lanes, microbatches, steps = (_count(head[key], key, least=1) for key in _COUNTS[:3])
    lag, stagger = (_count(head[key], key) for key in _COUNTS[3:])
    return Program(head["schedule"], place, microbatches, steps, tuple(orders), lanes, lag, stagger, fused)


def _count(text: str, name: str, least: int = 0) -> int:
    """A number of the text. Raises ScheduleError with the name of its line and the range."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else -1
    if not least <= number <= MAX_COUNT:
        raise ScheduleError(f"{name} {shown(text, 40)}: must be a number in {least} to {MAX_COUNT:,}")
    return number
