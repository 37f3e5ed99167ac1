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
from dataclasses import dataclass, field, replace

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
    splits,
    stage_times,
    table_shape,
)
from recpipe.planner.exact import Exact, Rest, num_assignments
from recpipe.planner.found import Found, Rated
from recpipe.planner.loads import Chosen, Cluster, Loads, add_all
from recpipe.planner.memory import cluster_of
from recpipe.planner.problem import Problem
from recpipe.planner.step_time import StepModel, TableTimes
from recpipe.planner.table_costs import Kind, Shape, kinds_of

logger = logging.getLogger(__name__)
Progress = Callable[[str], None]
Seed = Callable[[Problem, Shape, Sequence[Table]], "tuple[Chosen, ...] | None"]
"""A whole assignment from elsewhere, or None where it has none for this shape."""
_POLISHED, _NEAR = 3, 1.2
_SMALL = 2e5
"""Assignments of tables up to which the exact search is tried."""
_SEVERAL_STARTS = 8192
"""Tables times ranks up to which each exchange alone is tried as a start, too."""
_EVEN = TableTimes(1.0, 1.0, 2.0, 1.0)


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
    fastest: float = math.inf
    timed_out: bool = False

    def run(self) -> Found:
        names = list(choices(self.problem))
        self._survey(names)
        usable = [one for one in self.rated if one.assignment is not None]
        if not usable:
            notes = "; ".join(dict.fromkeys(one.note for one in self.rated)) or "the scope is empty"
            raise ScheduleError(f"no schedule can run here: {notes}")
        self._polish()
        proven = self._exhaust(names)
        ordered = self._best_first(self.rated)
        fastest = ordered[0]
        bound = fastest.step if proven else min([fastest.step, *self.bounds])
        best = self._simplest(ordered)
        ordered = [best, *(one for one in ordered if one is not best)]
        seconds = time.monotonic() - self.began
        return Found(best, ordered, self.named, bound, proven and best is fastest, len(names), self.timed_out, seconds)

    def _simplest(self, ordered: list[Rated]) -> Rated:
        """The simplest of those that predictions cannot tell from the fastest."""
        fastest = ordered[0]
        limit = fastest.step * (1 + self.problem.scope.margin)
        close = [one for one in ordered if one.score[0] == fastest.score[0] and one.step <= limit]
        return min(close, key=lambda one: (one.choice.stages, one.choice.microbatches, one.choice.mode == "spread", one.step))

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
        return self.fastest

    # Survey

    def _survey(self, names: Sequence[Choice]) -> None:
        """Rates every choice that may win: each with the first way for rows to travel, the close ones with the others."""
        bounded: list[tuple[float, int, Choice]] = []
        for number, choice in enumerate(names):
            try:
                bounded.append((self._compute_bound(choice), number, choice))
            except ScheduleError as error:
                self._add(Rated(choice, None, None, note=str(error)))
        bounded.sort()
        first = self.problem.scope.modes[0]
        for done, (bound, _, choice) in enumerate(one for one in bounded if one[2].mode == first):
            self._consider(choice, bound)
            if done % 16 == 0:
                self.progress(f"{done + 1} designs, best step {self._limit():.4g} ms")
        near = self._limit() * _NEAR
        steps = {one.choice: one.step for one in self.rated if one.assignment is not None}
        for bound, _, choice in bounded:
            if choice.mode == first:
                continue
            if steps.get(replace(choice, mode=first), math.inf) <= near or near == math.inf:
                self._consider(choice, bound)
            else:
                self._add(Rated(choice, None, None, note=f"far from the best with {first} already"))

    def _consider(self, choice: Choice, bound: float) -> None:
        """Rates a choice unless its tower and updates alone make it slower than the best."""
        if bound < self._limit() and not (self._stop() and self.rated_any):
            bound += self._least(choice).update
        if bound >= self._limit():
            self._drop(choice, bound, "its compute alone takes longer")
        elif self._stop() and self.rated_any:
            self._add(Rated(choice, None, None, note="not reached in the time box"))
        else:
            self._rate(choice)

    def _drop(self, choice: Choice, bound: float, note: str) -> None:
        self.bounds.append(bound)
        self._add(Rated(choice, None, None, note=note))

    def _add(self, one: Rated) -> None:
        self.rated.append(one)
        if one.score[0] == 0:
            self.fastest = min(self.fastest, one.step)

    def _compute_bound(self, choice: Choice, cut: Partition | None = None) -> float:
        """Milliseconds that the tower alone takes, at least. Raises ScheduleError for what cannot be cut."""
        place = placement_of(choice)
        cut = cut or best_partition(self.problem, design_rows(self.problem, choice), place.num_stages)
        stage = stage_times(self.problem, cut, design_rows(self.problem, choice), splits(choice))
        each = choice.microbatches / place.num_replicas
        busy = max(sum(stage[s].sum() for _, s in slots) for slots in place.slots) * each * 1e3
        chain = _round_trip(stage, each) * 1e3 if place.num_stages == choice.stages else 0.0
        return max(busy, chain)

    def _rate(self, choice: Choice, cut: Partition | None = None) -> None:
        try:
            design = make_design(self.problem, choice, cut)
        except ScheduleError as error:
            self._add(Rated(choice, None, None, note=str(error)))
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
        self._add(best)
        self.bounds.append(model.step(self._least(choice)))

    def _least(self, choice: Choice) -> TableTimes:
        """Times that no assignment of tables undercuts."""
        consumers = consumers_of(self.problem, choice)
        if consumers not in self.least:
            nothing = np.zeros(self.problem.topology.world)
            cluster = Cluster(self.problem.topology, consumers, nothing)
            self.least[consumers] = Rest.of(self._tables(len(consumers)), cluster).times(Loads(cluster))
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
        small = len(assigner.tables) * assigner.world <= _SEVERAL_STARTS
        for name, only in (("greedy", ""), ("window", "window"), ("pooled", "pooled"))[: 3 if small else 1]:
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

    def _polish(self) -> None:
        """Local search for the best design, and again where another one comes close; what it finds is tried on all designs."""
        done: set[tuple[int, ...]] = set()
        for _ in range(_POLISHED):
            best = self._best_first([one for one in self.rated if one.assignment is not None])[0]
            rest = [one for one in self.rated if one.design is not None and one.design.consumers not in done]
            near = [one for one in rest if one.step <= best.step * _NEAR or best.score[0] > 0]
            if not near or self._stop():
                return
            one = self._best_first(near)[0]
            assert one.design is not None
            done.add(one.design.consumers)
            self._improve(one)
            self.progress(f"{one.choice.label}: best step {self._limit():.4g} ms after polishing")

    def _improve(self, one: Rated) -> None:
        """Local search from the two best starts of a design; its tables are then tried on the others with these consumers."""
        assert one.design is not None and one.assignment is not None
        model = one.design.model()
        assigner = self._assigner(one.design, model)
        starts = [one.assignment, assigner.greedy(model.slopes(one.assignment.times))]
        starts += [assigner.rate(start.chosen) for start in self.starts[one.design.consumers]]
        starts.sort(key=lambda start: start.score)
        effort = self.problem.scope.effort
        better = min((assigner.improve(start, effort, self._stop) for start in starts[:2]), key=lambda a: a.score)
        start = self._start("searched", assigner, better.chosen)
        self.starts[one.design.consumers].append(start)
        for other in list(self.rated):
            if (
                other.design is not None
                and other.design.consumers == one.design.consumers
                and (other.score[0] > 0 or other.step <= one.step * _NEAR)
            ):
                self._try(other, start)

    def _try(self, one: Rated, start: _Start) -> None:
        """Keeps other tables for a design where they are better."""
        assert one.design is not None
        shortfall = max(0.0, float((start.used - cluster_of(self.problem, one.design).free).max()))
        model = one.design.model()
        assignment = Assignment(start.chosen, start.times, model.step(start.times), shortfall)
        if assignment.score < one.score:
            self._keep(Rated(one.choice, one.design, assignment, start.name))

    def _keep(self, one: Rated) -> None:
        """Puts a better rating of a choice in the place of the old one."""
        self.rated = [old for old in self.rated if old.choice != one.choice]
        self._add(one)

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
