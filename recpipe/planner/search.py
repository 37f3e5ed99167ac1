"""The joint search: tables, stages, schedule and memory, by the simulated time of a step.

1. Every design the scope allows gets a bound from its compute alone; designs that cannot win are not built.
2. The others are rated with a few whole assignments of tables (`seeds`).
3. The best few are polished: tables move until no move makes the step faster.
4. Small problems are then searched to the end, every cut of the tower and every place of every table (`exact`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from recpipe.errors import ScheduleError
from recpipe.model.partition import Partition
from recpipe.planner.assign import Assigner, Assignment, Table
from recpipe.planner.designs import (
    Choice,
    Design,
    best_partition,
    choices,
    consumers_of,
    design_rows,
    make_design,
    other_partitions,
    placement_of,
    stage_times,
    table_shape,
)
from recpipe.planner.exact import Exact, Rest, num_assignments
from recpipe.planner.loads import Chosen, Cluster, Loads, add_all
from recpipe.planner.memory import cluster_of
from recpipe.planner.problem import Problem
from recpipe.planner.step_time import StepModel, TableTimes
from recpipe.planner.table_costs import Kind, Shape, kinds_of

logger = logging.getLogger(__name__)
Progress = Callable[[str], None]
Seed = Callable[[Problem, Shape, Sequence[Table]], "tuple[Chosen, ...] | None"]
"""A whole assignment from elsewhere, or None where it has none for this shape."""
_POLISHED = 4
_SMALL = 2e5
"""Assignments of tables up to which the exact search is tried."""
_EVEN = TableTimes(1.0, 1.0, 2.0, 1.0)


@dataclass(frozen=True)
class Rated:
    """A design with its best known tables.

    Args:
        design, assignment: None where the family refused.
        choice: names.
        seed: where the tables came from: greedy, window, pooled, a name of the caller's, or searched.
        note: why it cannot be used, else empty.
    """

    choice: Choice
    design: Design | None
    assignment: Assignment | None
    seed: str = ""
    note: str = ""

    @property
    def step(self) -> float:
        return self.assignment.step if self.assignment else math.inf

    @property
    def score(self) -> tuple[float, float]:
        return self.assignment.score if self.assignment else (math.inf, math.inf)


@dataclass
class Found:
    """What a search gives.

    Args:
        best: the plan, or the attempt that misses fewest bytes.
        rated: every choice that was looked at, best first.
        named: for each seed of the caller, the best design for exactly those tables.
        bound: no plan in the scope is faster than this, milliseconds.
        proven: the best is as fast as any plan in the scope.
        looked: designs considered.
        timed_out: the time box ended the search.
        seconds: it took.
    """

    best: Rated
    rated: list[Rated]
    named: dict[str, Rated]
    bound: float
    proven: bool
    looked: int
    timed_out: bool
    seconds: float

    @property
    def fits(self) -> bool:
        return self.best.assignment is not None and self.best.assignment.shortfall == 0


def search(problem: Problem, seeds: dict[str, Seed] | None = None, progress: Progress = logger.info) -> Found:
    """The fastest plan that fits, or the attempt that comes closest to fitting.

    Raises:
        ScheduleError: no schedule of the scope can run at all.
    """
    return _Search(problem, seeds or {}, progress).run()


@dataclass
class _Start:
    """A whole assignment, rated once for all designs with the same consumers."""

    name: str
    chosen: tuple[Chosen, ...]
    times: TableTimes
    used: np.ndarray


@dataclass
class _Search:
    problem: Problem
    seeds: dict[str, Seed]
    progress: Progress
    began: float = field(default_factory=time.monotonic)
    kinds: dict[Shape, tuple[Table, ...]] = field(default_factory=dict)
    starts: dict[tuple[int, ...], list[_Start]] = field(default_factory=dict)
    least: dict[tuple[int, ...], TableTimes] = field(default_factory=dict)
    named: dict[str, Rated] = field(default_factory=dict)
    rated: list[Rated] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    timed_out: bool = False

    def run(self) -> Found:
        names = list(choices(self.problem))
        self._survey(names)
        usable = [one for one in self.rated if one.assignment is not None]
        if not usable:
            notes = "; ".join(dict.fromkeys(one.note for one in self.rated)) or "the scope is empty"
            raise ScheduleError(f"no schedule can run here: {notes}")
        for one in self._best_first(usable)[:_POLISHED]:
            self._polish(one)
        proven = self._exhaust(names)
        ordered = self._best_first(self.rated)
        best = ordered[0]
        bound = best.step if proven else min([best.step, *self.bounds])
        seconds = time.monotonic() - self.began
        return Found(best, ordered, self.named, bound, proven, len(names), self.timed_out, seconds)

    @staticmethod
    def _best_first(rated: list[Rated]) -> list[Rated]:
        return sorted(rated, key=lambda one: one.score)

    def _stop(self) -> bool:
        late = time.monotonic() - self.began > self.problem.scope.seconds
        self.timed_out = self.timed_out or late
        return late

    @property
    def rated_any(self) -> bool:
        """Whether there is something to fall back on."""
        return any(one.assignment is not None for one in self.rated)

    def _limit(self) -> float:
        """Step of the best plan that fits."""
        return min((one.step for one in self.rated if one.score[0] == 0), default=math.inf)

    # Survey

    def _survey(self, names: Sequence[Choice]) -> None:
        """Rates every choice whose compute alone does not make it slower than the best."""
        bounded: list[tuple[float, int, Choice]] = []
        for number, choice in enumerate(names):
            try:
                bounded.append((self._compute_bound(choice), number, choice))
            except ScheduleError as error:
                self.rated.append(Rated(choice, None, None, note=str(error)))
        bounded.sort()
        for done, (bound, _, choice) in enumerate(bounded):
            if bound >= self._limit() or (self._stop() and self.rated_any):
                self.bounds.append(bound)
                note = "its compute alone takes longer" if bound >= self._limit() else "not reached in the time box"
                self.rated.append(Rated(choice, None, None, note=note))
                continue
            self._rate(choice)
            if done % 16 == 0:
                self.progress(f"{done + 1} of {len(bounded)} designs, best step {self._limit():.4g} ms")

    def _compute_bound(self, choice: Choice, cut: Partition | None = None) -> float:
        """Milliseconds that the tower alone takes, at least. Raises ScheduleError for what cannot be cut."""
        place = placement_of(choice)
        cut = cut or best_partition(self.problem, design_rows(self.problem, choice), place.num_stages)
        stage = stage_times(self.problem, cut, design_rows(self.problem, choice))
        each = choice.microbatches / place.num_replicas
        busy = max(sum(stage[s].sum() for _, s in slots) for slots in place.slots) * each * 1e3
        chain = _round_trip(stage, each) * 1e3 if place.num_stages == choice.stages else 0.0
        least = self._least(choice)
        return max(busy + least.lookup, chain) + least.update

    def _rate(self, choice: Choice, cut: Partition | None = None) -> None:
        try:
            design = make_design(self.problem, choice, cut)
        except ScheduleError as error:
            self.rated.append(Rated(choice, None, None, note=str(error)))
            return
        model = design.model()
        cluster = cluster_of(self.problem, design)
        best: Rated | None = None
        for start in self._starts(design, model):
            shortfall = max(0.0, float((start.used - cluster.free).max()))
            assignment = Assignment(start.chosen, start.times, model.step(start.times), shortfall)
            one = Rated(choice, design, assignment, start.name)
            if start.name in self.seeds and (start.name not in self.named or one.score < self.named[start.name].score):
                self.named[start.name] = one
            best = one if best is None or one.score < best.score else best
        assert best is not None
        self.rated.append(best)
        self.bounds.append(model.step(self._least(choice)))

    def _least(self, choice: Choice) -> TableTimes:
        """Times that no assignment of tables undercuts."""
        consumers = consumers_of(self.problem, choice)
        if consumers not in self.least:
            nothing = np.zeros(self.problem.topology.world)
            cluster = Cluster(self.problem.topology, consumers, nothing)
            self.least[consumers] = Rest.of(self._tables(len(consumers)), cluster).times(Loads.empty(cluster))
        return self.least[consumers]

    def _assigner(self, design: Design, model: StepModel) -> Assigner:
        topology = self.problem.topology
        return Assigner(
            self._tables(len(design.consumers)), cluster_of(self.problem, design), model, topology.local_size
        )

    def _tables(self, consumers: int) -> tuple[Table, ...]:
        """Kinds of every table, made once for designs whose consumers ask alike."""
        shape = table_shape(self.problem, consumers)
        if shape not in self.kinds:
            self.kinds[shape] = tuple(self._table(i, shape) for i in range(len(self.problem.tables)))
        return self.kinds[shape]

    def _table(self, index: int, shape: Shape) -> Table:
        demand = self.problem.tables[index]
        allowed = self.problem.allowed_for(demand.spec.name)
        kinds: list[Kind] = kinds_of(demand, shape, allowed)
        if not kinds:
            raise ScheduleError(
                f"table {demand.spec.name}: nothing that planner.constraints and tables.* allow can run"
            )
        return Table(tuple(kinds), allowed.ranks)

    def _starts(self, design: Design, model: StepModel) -> list[_Start]:
        if design.consumers not in self.starts:
            self.starts[design.consumers] = list(self._make_starts(design, model))
        return self.starts[design.consumers]

    def _make_starts(self, design: Design, model: StepModel) -> Iterator[_Start]:
        assigner = self._assigner(design, model)
        for name, only in (("greedy", ""), ("window", "window"), ("pooled", "pooled")):
            yield self._start(name, assigner, assigner.greedy(_EVEN, only).chosen)
        shape = table_shape(self.problem, len(design.consumers))
        for name, seed in self.seeds.items():
            chosen = seed(self.problem, shape, assigner.tables)
            if chosen is not None:
                yield self._start(name, assigner, chosen)

    @staticmethod
    def _start(name: str, assigner: Assigner, chosen: tuple[Chosen, ...]) -> _Start:
        loads = add_all(assigner.cluster, chosen)
        return _Start(name, chosen, loads.times(), loads.used())

    # Polish

    def _polish(self, one: Rated) -> None:
        """Local search from the two best starts of a design; keeps what is better."""
        assert one.design is not None and one.assignment is not None
        if self._stop():
            return
        model = one.design.model()
        assigner = self._assigner(one.design, model)
        slopes = model.slopes(one.assignment.times)
        starts = [one.assignment, assigner.greedy(slopes)]
        starts += [assigner.rate(start.chosen) for start in self._starts(one.design, model)]
        starts.sort(key=lambda start: start.score)
        effort = self.problem.scope.effort
        for start in starts[:2]:
            better = assigner.improve(start, effort, self._stop)
            if better.score < one.score:
                one = Rated(one.choice, one.design, better, "searched")
        self._keep(one)
        self.progress(f"{one.choice.label}: {one.step:.4g} ms after polishing")

    def _keep(self, one: Rated) -> None:
        """Puts a better rating of a choice in the place of the old one."""
        self.rated = [old for old in self.rated if old.choice != one.choice]
        self.rated.append(one)

    # Exact

    def _exhaust(self, names: Sequence[Choice]) -> bool:
        """Searches small problems to the end. Gives whether the best is proven to be the best."""
        proven = True
        for choice in names:
            for cut in (None, *self._cuts(choice)):
                proven = self._finish(choice, cut) and proven
        return proven and not self.timed_out

    def _cuts(self, choice: Choice) -> Iterator[Partition]:
        try:
            yield from other_partitions(self.problem, choice)
        except ScheduleError:
            return

    def _finish(self, choice: Choice, cut: Partition | None) -> bool:
        try:
            if self._compute_bound(choice, cut) >= self._limit():
                return True
            if num_assignments(self._tables(len(consumers_of(self.problem, choice))), self.problem) > _SMALL:
                return False
            design = make_design(self.problem, choice, cut)
        except ScheduleError:
            return True
        model = design.model()
        if self._stop():
            return False
        if model.step(self._least(choice)) >= self._limit() * (1 - 1e-9):
            return True
        exact = Exact(self._assigner(design, model), self.problem.scope.effort * 10, self._stop)
        best, complete = exact.run(self._limit())
        if best is not None:
            self._keep(Rated(choice, design, best, "searched"))
        return complete


def _round_trip(stage: np.ndarray, microbatches: float) -> float:
    """Seconds from the first forward of stage 0 to its last input gradient, at least, by way of each stage.

    Args:
        stage: F, I and W of each stage, stages x 3.
    """
    before = np.concatenate([[0.0], np.cumsum(stage[:-1, 0] + stage[:-1, 1])])
    return float((before + microbatches * (stage[:, 0] + stage[:, 1])).max())
