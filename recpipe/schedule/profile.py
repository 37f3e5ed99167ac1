"""What a machine was measured to take for a model, and the costs of any program that follow from it.

Only numbers and arithmetic; `recpipe.train.profile` measures them. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from recpipe.errors import ConfigError
from recpipe.escapes import shown
from recpipe.records import record
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.ir import Op, Program
from recpipe.untrusted import Source, Value

Line = tuple[float, float]
"""Milliseconds of an action: a fixed part, and a part for each row of its microbatch."""


@dataclass(frozen=True)
class Cut:
    """A tower cut in a number of stages.

    Args:
        compute: lines by op and stage: ``F0``, ``B1``, ``I0``, ``W1``, ``OPT0``; rows do not matter for the last.
        boundary: bytes of a row that cross the cut behind each stage.
        weights: gradient bytes of each stage.
        first: blocks of the first stage; 0 where nobody counted.
    """

    compute: dict[str, Line]
    boundary: list[float]
    weights: list[float]
    first: int = 0


@dataclass(frozen=True)
class MeshProfile:
    """The exchange of a mesh.

    Args:
        lines: of table work and of issuing messages, by op and home stage: ``EL0``, ``EU1``, ``ED0``, ``EG0``.
        row_bytes: that one replica receives in a step, its own share of the tables included.
        first_use: share of the rows first needed by each of so many microbatches.
        early: share of them that the step before does not touch.
    """

    lines: dict[str, Line]
    row_bytes: float
    first_use: list[float]
    early: float


@dataclass(frozen=True)
class Profile:
    """Everything that was measured.

    Args:
        model, world, global_rows: of what: ranks, and rows of a step over all replicas.
        cuts: by number of stages.
        meshes: by ranks of a pipeline.
        blocks: milliseconds of forward and backward of each block of the tower, to cut it by; empty where not measured.
        alpha, bandwidth: of a link between ranks; bytes a millisecond.
        beside: number of blocks before the first that reads rows of tables.
        exchange: bandwidth that an all-to-all of all ranks reaches, both ways at once; 0: as `bandwidth`.
    """

    model: str
    world: int
    global_rows: int
    cuts: dict[str, Cut]
    meshes: dict[str, MeshProfile]
    alpha: float
    bandwidth: float
    blocks: list[float] = field(default_factory=list)
    exchange: float = 0.0
    beside: int = 0

    def beside_rows(self, cut: Cut) -> float:
        """Share of the first stage that runs while rows are on their way."""
        stage = self.blocks[: cut.first]
        return sum(stage[: self.beside]) / sum(stage) if sum(stage) else 0.0

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))


def load_profile(path: Path) -> Profile:
    """Reads what `Profile.save` wrote.

    Raises:
        ConfigError: there is no such file, or it is not a profile.
    """
    if not path.exists():
        raise ConfigError(f"cost.file={path}: No such file or directory; make one with: recpipe profile")
    source = Source(path, ConfigError, "it is not a profile as recpipe profile writes it now")
    try:
        content = source.json()
        return _checked(record(content, Profile), content)
    except ConfigError as error:
        raise ConfigError(f"cost.file={error}") from None


def _checked(profile: Profile, content: Value) -> Profile:
    """A profile whose lists fit each other; times and sizes are not negative."""
    for name, cut in profile.cuts.items():
        if not name.isdecimal() or len(cut.weights) != int(name) or len(cut.boundary) not in (int(name) - 1, int(name)):
            raise content["cuts"].wrong(f"have {shown(name)}, whose stages are not {shown(name)}")
    for name, mesh in profile.meshes.items():
        if not name.isdecimal() or not mesh.first_use or not 0 <= mesh.early <= 1:
            raise content["meshes"].wrong(f"have {shown(name)}, which is no mesh with first uses and a share")
    numbers = (profile.alpha, profile.exchange, *(n for cut in profile.cuts.values() for n in (*cut.boundary, *cut.weights)))
    if min(numbers) < 0 or profile.bandwidth <= 0 or profile.global_rows < 1 or profile.world < 1:
        raise content.wrong("has a time, a size or a count that cannot be")
    return profile


def from_json(values: dict[str, Any]) -> Profile:
    """From what `asdict` made of one, in this process. Raises ConfigError for anything else."""
    return record(Value(values, Source("profile", ConfigError)), Profile)


def profiled_cost(profile: Profile, program: Program) -> Cost:
    """The costs of a program on the machine that was profiled.

    Raises:
        ConfigError: the tower was not profiled in so many stages, or not over so many ranks.
    """
    place = program.placement
    cut = _found(profile.cuts, place.num_stages, "stages of the tower")
    mesh: MeshProfile = _found(profile.meshes, place.num_ranks, "ranks of a pipeline")
    rows = profile.global_rows / program.num_copies / program.microbatches
    compute = {name: _at(line, rows) for name, line in cut.compute.items()}
    table = {name: _at(line, rows) for name, line in mesh.lines.items()}
    if any(action.op is Op.DG for order in program.orders for action in order):
        table = deferred(table, mesh.early, program.microbatches)
    issued = ("ED", "PO", "EO", "EG", "DG")
    boundary = [size * rows for size in cut.boundary]
    largest = max(boundary, default=0.0) or 1.0
    link = Link(profile.alpha, profile.bandwidth)
    return Cost(
        activation_bytes=largest,
        cuts=tuple(size / largest for size in boundary),
        weight_bytes=sum(cut.weights) / place.width,
        weights=tuple(cut.weights),
        exchange=Link(profile.alpha, profile.exchange or profile.bandwidth),
        near=link,
        far=link,
        route=2 * link.alpha,
        row_bytes=mesh.row_bytes / place.num_replicas,
        first_use=_shares(mesh.first_use, program.microbatches),
        early=mesh.early,
        beside_rows=profile.beside_rows(cut),
        measured={**compute, **{name: time for name, time in table.items() if not name.startswith(issued)}},
        issue={name: time for name, time in table.items() if name.startswith(issued)},
        shared=True,
        host="sync",
    )


def deferred(times: Mapping[str, float], early: float, microbatches: int) -> dict[str, float]:
    """Times of a step that defers gradients, from those of one that does not: DG and DU take their share of EG and EU.

    Args:
        times: by op and stage; EG of one microbatch.
        early: share that is deferred.
    """
    found: dict[str, float] = {}
    for name, time in times.items():
        is_sent = name.startswith("EG")
        if is_sent or name.startswith("EU"):
            found[f"D{name[1:]}"] = time * early * (microbatches if is_sent else 1)
            time *= 1 - early
        found[name] = time
    return found


def _found(known: Mapping[str, Any], number: int, what: str) -> Any:
    if str(number) not in known:
        raise ConfigError(f"cost.file: {number} {what} were not profiled, only {', '.join(known)}")
    return known[str(number)]


def _at(line: Line, rows: float) -> float:
    return max(0.0, line[0] + line[1] * rows)


def _shares(fine: Sequence[float], microbatches: int) -> tuple[float, ...]:
    """First uses by another number of microbatches, from the curve of the finest that was measured."""
    curve = [0.0, *accumulate(fine)]

    def seen(part: float) -> float:
        place = part * len(fine)
        low = min(int(place), len(fine) - 1)
        return curve[low] + (curve[low + 1] - curve[low]) * (place - low)

    return tuple(seen((m + 1) / microbatches) - seen(m / microbatches) for m in range(microbatches))
