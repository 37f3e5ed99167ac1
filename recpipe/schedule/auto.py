"""Choose a schedule: simulate everything that fits and take the smallest predicted step.

Names do not decide. Candidates are all families, with the chunk counts, pipeline counts and ways past one unit that they
offer, over the microbatch counts asked for; for small cases also the best order there is (`search`). Families with a lag
are left out when the program has more than one step: what they compute is not the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recpipe.errors import ScheduleError
from recpipe.schedule.assemble import complete, microbatch_ratio
from recpipe.schedule.cost import Durations
from recpipe.schedule.families import FAMILIES, build
from recpipe.schedule.families.base import Request
from recpipe.schedule.families.chimera import BEYOND
from recpipe.schedule.ir import WHOLE_STEP, Action, Op, Program
from recpipe.schedule.metrics import max_live
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.search import best_order, is_small
from recpipe.schedule.simulate import simulate


@dataclass(frozen=True)
class Scope:
    """What `choose` may consider.

    Args:
        families: names, empty for all.
        microbatches: counts to try, empty for the request's own. Costs speak of the request's count.
        chunks: chunk counts for looped families.
        copies: most weight copies in a lane; None for no limit.
    """

    families: tuple[str, ...] = ()
    microbatches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = (2, 3)
    copies: int | None = None


@dataclass(frozen=True)
class Candidate:
    """One schedule that was looked at.

    Args:
        label: family and options, as one would type them.
        program: None when the family refused.
        makespan: predicted time of all steps; infinite when it cannot be used.
        peak_activations: in microbatches of the request's size.
        note: why it cannot be used, else empty.
    """

    label: str
    program: Program | None
    makespan: float
    peak_activations: float
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """What surrounds the compute order, the same for every candidate: see `assemble`."""

    exchange: Exchange = Exchange()
    steps: int = 1
    lanes: int = 1
    fill: bool = False


def choose(request: Request, setting: Setting = Setting(), scope: Scope = Scope()) -> tuple[Program, list[Candidate]]:
    """The fastest program that fits, and every candidate from fastest to unusable.

    Raises ScheduleError when nothing fits, with the candidate that comes closest in memory.
    """
    found = [_evaluate(label, one, request, setting, scope) for label, one in _candidates(request, setting, scope)]
    found.sort(key=lambda candidate: (candidate.makespan, candidate.peak_activations))
    best = found[0] if found else None
    if best is None or best.program is None or best.note:
        built = [candidate for candidate in found if candidate.program is not None]
        near = min(built, key=lambda candidate: candidate.peak_activations, default=None)
        hint = f" The smallest, {near.label}, holds {near.peak_activations:g} activations." if near else ""
        raise ScheduleError(f"no schedule fits schedule.memory={request.memory}, copies={scope.copies}.{hint}")
    return best.program, found


Option = tuple[str, Request]
"""Family name, or ``searched``, and the request to build it with."""


def _candidates(request: Request, setting: Setting, scope: Scope) -> Iterator[tuple[str, Option]]:
    for microbatches in scope.microbatches or (request.microbatches,):
        ratio = request.microbatches / microbatches
        memory = None if request.memory is None else request.memory / ratio
        base = replace(request, microbatches=microbatches, cost=request.cost.scaled(ratio), memory=memory)
        suffix = f" microbatches={microbatches}" if scope.microbatches else ""
        for name in scope.families or FAMILIES:
            for label, one in _options(name, base, scope):
                yield label + suffix, (name, one)
        if is_small(base) and not scope.families:
            yield "searched" + suffix, ("searched", base)


def _options(name: str, base: Request, scope: Scope) -> Iterator[tuple[str, Request]]:
    if name in ("interleaved", "looped_bfs", "interleaved_zb"):
        for chunks in scope.chunks:
            yield f"{name} chunks={chunks}", replace(base, chunks=chunks)
    elif name == "chimera":
        half = base.ranks // 2
        for f in (f for f in range(1, half + 1) if half % f == 0):
            for beyond in BEYOND:
                yield f"{name} pipelines={2 * f} beyond={beyond}", replace(base, pipelines=2 * f, beyond=beyond)
    else:
        yield name, base


def _evaluate(label: str, option: Option, request: Request, setting: Setting, scope: Scope) -> Candidate:
    name, one = option
    try:
        compute = best_order(one, _tails(one, setting)) if name == "searched" else build(name, one)
        program = complete(compute, one, setting.exchange, setting.steps, setting.lanes, setting.fill)
    except ScheduleError as error:
        return Candidate(label, None, float("inf"), 0.0, str(error))
    ratio = request.microbatches / (program.microbatches * program.placement.num_replicas)
    peak = max(max_live(program, rank) for rank in range(len(program.orders))) * ratio
    note = _misfit(program, peak, request, scope)
    if note:
        return Candidate(label, program, float("inf"), peak, note)
    makespan = simulate(program, one.cost.scaled(microbatch_ratio(program, one))).makespan
    return Candidate(label, program, makespan, peak)


def _misfit(program: Program, peak: float, request: Request, scope: Scope) -> str:
    if program.lag:
        return f"not exact: weights are {program.lag} step old"
    if request.memory is not None and peak > request.memory + 1e-9:
        return f"holds {peak:g} activations, schedule.memory={request.memory:g}"
    if scope.copies is not None and program.placement.num_replicas > scope.copies:
        return f"{program.placement.num_replicas} weight copies, schedule.copies={scope.copies}"
    return ""


def _tails(request: Request, setting: Setting) -> list[float]:
    """Reduction and optimizer of each rank, which follow its last weight gradient."""
    empty = build("gpipe", replace(request, microbatches=1))
    durations = Durations(replace(empty, lanes=setting.lanes), request.cost)
    ends = [Action(Op.OPT, rank, WHOLE_STEP) for rank in range(request.ranks)]
    return [durations.of(end) + durations.of(end._replace(op=Op.R)) for end in ends]
