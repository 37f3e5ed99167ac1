"""Ways to run the tower: stages, cut, schedule, microbatches, how rows travel; each with its cost and its step model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recpipe.comm.reduce import BUCKET_BYTES
from recpipe.errors import ScheduleError
from recpipe.model.partition import Partition, partition_by_cost
from recpipe.planner.problem import DENSE_STATE, Problem
from recpipe.planner.step_time import StepModel
from recpipe.planner.table_costs import Shape
from recpipe.planner.tower import nearest
from recpipe.schedule.assemble import complete
from recpipe.schedule.cost import Cost, Link
from recpipe.schedule.families import build
from recpipe.schedule.families.base import Request
from recpipe.schedule.ir import Op, Placement, Program
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.profile import deferred

_SPLIT = ("zb_h1", "zb_h2", "interleaved_zb", "zbv", "dualpipe", "dualpipev", "greedy")
"""Families whose weight gradients come in a W of their own."""
_LOOPED = ("interleaved", "looped_bfs", "interleaved_zb")


@dataclass(frozen=True)
class Choice:
    """Names of one way to run the tower, as they stand in a configuration.

    Args:
        stages: ranks of one pipeline.
        schedule, microbatches, chunks: as in the group `schedule`.
        mode: how rows travel, ``schedule.embedding``.
    """

    stages: int
    schedule: str
    microbatches: int
    mode: str
    chunks: int = 0

    @property
    def label(self) -> str:
        chunks = f" chunks={self.chunks}" if self.chunks else ""
        return f"{self.stages} stages, {self.schedule}{chunks}, {self.microbatches} microbatches, {self.mode}"


@dataclass(frozen=True)
class Design:
    """A choice with a cut of the tower.

    Args:
        choice: names.
        program: complete, for one lane.
        partition: blocks of each stage of the program.
        cost: without table times.
    """

    choice: Choice
    program: Program
    partition: Partition
    cost: Cost

    @property
    def place(self) -> Placement:
        return self.program.placement

    @property
    def lanes(self) -> int:
        return self.program.lanes

    @property
    def consumers(self) -> tuple[int, ...]:
        """Ranks, over all lanes, that read data."""
        width = self.place.num_ranks
        return tuple(lane * width + rank for lane in range(self.lanes) for rank in self.place.consumers)

    def model(self) -> StepModel:
        """The step as a function of table times."""
        return StepModel(self.program, self.cost, self.choice.mode)


def choices(problem: Problem) -> Iterator[Choice]:
    """Everything the scope allows, whether it can be built or not."""
    scope = problem.scope
    for stages in (one for one in scope.stages or stage_counts(problem) if problem.topology.world % one == 0):
        families = scope.schedules if stages > 1 else scope.schedules[:1]
        for name, microbatches, mode in itertools.product(families, scope.microbatches, scope.modes):
            for chunks in scope.chunks if name in _LOOPED else (0,):
                yield Choice(stages, name, microbatches, mode, chunks)


def stage_counts(problem: Problem) -> list[int]:
    """Pipelines that divide the ranks, have a block for every stage, and fill nodes or parts of nodes evenly."""
    world, per_node = problem.topology.world, problem.topology.ranks_per_node
    most = min(world, len(problem.tower.blocks))
    even = problem.topology.num_nodes == 1
    return [s for s in range(1, most + 1) if world % s == 0 and (even or per_node % s == 0 or s % per_node == 0)]


def make_design(problem: Problem, choice: Choice, partition: Partition | None = None) -> Design:
    """The design of a choice, with the cut whose slowest stage is fastest unless one is given.

    Raises:
        ScheduleError: the family cannot run so many microbatches or stages, or a stage would have no block.
    """
    lanes = problem.topology.world // choice.stages
    rows = design_rows(problem, choice)
    cut = partition or best_partition(problem, rows, placement_of(choice).num_stages)
    cost = _cost(problem, choice, cut, rows, lanes)
    steps = problem.scope.steps
    greedy = choice.schedule == "greedy"
    program = _assembled(choice, lanes, steps, cost) if greedy else _program(choice, lanes, steps)
    return Design(choice, program, cut, cost)


@lru_cache(maxsize=64)
def _program(choice: Choice, lanes: int, steps: int) -> Program:
    """Of a family that does not look at costs."""
    return _assembled(choice, lanes, steps, Cost())


def _assembled(choice: Choice, lanes: int, steps: int, cost: Cost) -> Program:
    request = Request(choice.stages, choice.microbatches, chunks=choice.chunks or 2, cost=cost)
    return complete(build(choice.schedule, request), request, Exchange(choice.mode), steps, lanes)


@lru_cache(maxsize=256)
def _placement(schedule: str, stages: int, chunks: int) -> Placement:
    """Of any program of this family: it does not depend on the number of microbatches."""
    return build(schedule, Request(stages, 2 * stages, chunks=chunks or 2)).placement


def placement_of(choice: Choice) -> Placement:
    """Where stages lie. Raises ScheduleError where the family does not run on so many ranks."""
    return _placement(choice.schedule, choice.stages, choice.chunks)


def design_rows(problem: Problem, choice: Choice) -> float:
    """Rows of data of one microbatch. Raises ScheduleError where a microbatch or a stage would be empty."""
    lanes = problem.topology.world // choice.stages
    rows = problem.global_batch / lanes / choice.microbatches
    stages = placement_of(choice).num_stages
    if rows < 1:
        raise ScheduleError(
            f"{choice.microbatches} microbatches of a batch of {problem.global_batch} on {lanes} replicas"
        )
    if stages > len(problem.tower.blocks):
        raise ScheduleError(f"{stages} stages of {len(problem.tower.blocks)} blocks")
    return rows


def stage_times(problem: Problem, cut: Partition, rows: float, split: bool = False) -> np.ndarray:
    """Seconds of F, I and W of each stage, on the slowest kind of node: stages x 3.

    Args:
        split: whether I and W run apart.
    """
    times = _block_times(problem, rows, len(cut), split)
    return _by_stage(times, cut)


def _by_stage(times: np.ndarray, cut: Partition) -> np.ndarray:
    return np.array([times[part.start : part.stop].sum(axis=0) for part in cut])


def _block_times(problem: Problem, rows: float, stages: int, split: bool = False) -> np.ndarray:
    return np.max([problem.tower.times(rows, group, stages, split) for group in problem.topology.nodes], axis=0)


def splits(choice: Choice) -> bool:
    """Whether weight gradients come in a W of their own."""
    return choice.schedule in _SPLIT


def best_partition(problem: Problem, rows: float, stages: int) -> Partition:
    """Exact: the slowest stage is as fast as can be; among equals the least traffic."""
    costs = _block_times(problem, rows, stages).sum(axis=1).tolist()
    return partition_by_cost(costs, stages, problem.tower.cut_elements[:-1])


def other_partitions(problem: Problem, choice: Choice) -> Iterator[Partition]:
    """All cuts, where they are no more than the scope allows."""
    blocks, stages = len(problem.tower.blocks), placement_of(choice).num_stages
    if stages < 2 or math.comb(blocks - 1, stages - 1) > problem.scope.partitions:
        return
    for starts in itertools.combinations(range(1, blocks), stages - 1):
        ends = (*starts, blocks)
        yield tuple(range(a, b) for a, b in zip((0, *starts), ends, strict=True))


def _cost(problem: Problem, choice: Choice, cut: Partition, rows: float, lanes: int) -> Cost:
    """Milliseconds and bytes of one rank's share."""
    topology, width = problem.topology, choice.stages
    near, far = topology.message or topology.near, topology.message or topology.far
    blocks = _block_times(problem, rows, len(cut), splits(choice)) * 1e3
    times, first = _by_stage(blocks, cut), blocks[: cut[0].stop]
    weights = [sum(problem.tower.blocks[b].parameters for b in part) for part in cut]
    cuts = [problem.tower.cut_elements[part.stop] * rows * problem.element for part in cut[:-1]]
    largest = max(cuts, default=0.0)
    state = DENSE_STATE[problem.dense_optimizer]
    slowest = min(group.bandwidth for group in topology.nodes)
    optimizer = sum(weights) * problem.element * (4 + 2 * state) / slowest * 1e3
    early, first_use = row_shares(problem, lanes * (2 if _doubled(choice) else 1), choice.microbatches)
    return Cost(
        forward=float(times[:, 0].sum()) / width,
        input=float(times[:, 1].sum()) / width,
        weight=float(times[:, 2].sum()) / width,
        profile=tuple(times.sum(axis=1).tolist()),
        weights=tuple(map(float, weights)) if sum(weights) else (),
        cuts=tuple(one / largest for one in cuts) if largest else (),
        exchange=Link(_alpha(problem), 1.0),
        reduction=_reduction(problem, lanes * width),
        optimizer=optimizer / width,
        activation_bytes=largest,
        weight_bytes=sum(weights) * problem.element / width,
        near=_link(near.alpha, near.bandwidth),
        far=_link(far.alpha, far.bandwidth),
        ranks_per_node=topology.ranks_per_node if topology.num_nodes > 1 else topology.world,
        first_use=first_use,
        early=early,
        beside_rows=float(first[: problem.tower.beside].sum() / first.sum()) if first.sum() else 0.0,
        measured={**_reductions(problem, choice, times, weights, lanes), **_measured(problem, cut, times)},
        route=2 * _alpha(problem) if topology.host == "sync" else 0.0,
        issue=_issue(problem, choice, rows, early),
        shared=topology.host == "sync",
        host=topology.host,
    )


def _measured(problem: Problem, cut: Partition, times: np.ndarray) -> dict[str, float]:
    """Compute and optimizer of each stage, where a run was measured: they do not follow one profile."""
    if not problem.tower.whole:
        return {}
    optimizer = nearest(problem.tower.whole, len(cut)).optimizer * 1e3
    found: dict[str, float] = {}
    for stage, (forward, inputs, weights) in enumerate(times):
        one = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights, "OPT": optimizer}
        found |= {f"{op}{stage}": float(time) for op, time in one.items()}
    return found


def _issue(problem: Problem, choice: Choice, rows: float, early: float) -> dict[str, float]:
    """Milliseconds that issuing a message takes of the compute before which it is issued.

    Args:
        early: share of the row gradients that may be deferred.
    """
    if not problem.issue:
        return {}
    lines = nearest(problem.issue, choice.stages)
    if choice.mode not in ("ahead", "spread"):
        # What finds early rows is counted with EO; without them sending takes what it takes for those.
        lines = {name: lines.get(name.replace("EO", "PO"), line) for name, line in lines.items() if name[:2] != "PO"}
    found = {name: max(0.0, line.fixed + line.row * rows) * 1e3 for name, line in lines.items()}
    return deferred(found, early, choice.microbatches) if choice.mode == "spread" else found


def _reductions(
    problem: Problem, choice: Choice, times: np.ndarray, weights: list[int], lanes: int
) -> dict[str, float]:
    """Milliseconds of each stage's reduction that are left after its last backward: buckets leave while it runs.

    Args:
        times: F, I and W of each stage, milliseconds.
    """
    copies = lanes * placement_of(choice).num_replicas
    link, found = _reduction(problem, lanes * choice.stages), {}
    for stage, (_, inputs, products) in enumerate(times if copies > 1 else ()):
        size = weights[stage] * problem.element
        under = products if splits(choice) else inputs + products
        bucket = min(size, BUCKET_BYTES)
        whole, last = (2 * (copies - 1) / copies * part / link.bandwidth for part in (size, bucket))
        hidden = under * (1 - bucket / size) if size else 0.0
        found[f"R{stage}"] = 2 * (copies - 1) * link.alpha + max(last, whole - hidden)
    return found


def _doubled(choice: Choice) -> bool:
    return placement_of(choice).num_replicas > 1


def _link(alpha: float, bandwidth: float) -> Link:
    return Link(alpha * 1e3, bandwidth / 1e3)


def _alpha(problem: Problem) -> float:
    """Milliseconds before an all-to-all over all ranks moves bytes."""
    return problem.topology.collective(problem.topology.world) * 1e3 if problem.topology.world > 1 else 0.0


def _reduction(problem: Problem, ranks: int) -> Link:
    """Between nodes NCCL sums over trees: a chain of log2(n) hops each way; gloo goes round a ring."""
    topology = problem.topology
    tier = topology.message or (topology.near if topology.num_nodes == 1 else topology.far)
    hops = 1.0 if topology.host == "sync" or ranks < 3 else math.ceil(math.log2(ranks)) / (ranks - 1)
    return _link(tier.alpha * hops, tier.bandwidth)


@lru_cache(maxsize=512)
def _row_shares(tables: tuple, rows: float, consumers: int, microbatches: int):  # type: ignore[no-untyped-def]
    weight = np.array([demand.unique(rows) * demand.spec.dim for demand in tables])
    early = np.array([demand.early_share(rows, rows * consumers) for demand in tables])
    parts = [sum(d.unique(rows * (m + 1) / microbatches) * d.spec.dim for d in tables) for m in range(microbatches)]
    total = float(weight.sum())
    first = np.diff([0.0, *parts]).clip(min=0.0) if microbatches > 1 else np.ones(1)
    return (float((early * weight).sum() / total) if total else 1.0), tuple(float(x) for x in first)


def row_shares(problem: Problem, consumers: int, microbatches: int) -> tuple[float, tuple[float, ...]]:
    """Share of rows that may travel early, and the rows first needed by each microbatch."""
    return _row_shares(problem.tables, problem.global_batch / consumers, consumers, microbatches)


def consumers_of(problem: Problem, choice: Choice) -> tuple[int, ...]:
    """Ranks, over all lanes, that read data."""
    place = placement_of(choice)
    lanes = problem.topology.world // choice.stages
    return tuple(lane * place.num_ranks + rank for lane in range(lanes) for rank in place.consumers)


def table_shape(problem: Problem, consumers: int) -> Shape:
    """What the tables see of a design with so many consumers."""
    return Shape(
        problem.topology.world,
        problem.topology.local_size,
        consumers,
        problem.global_batch / consumers,
        problem.table_optimizer,
        problem.row_element,
    )


def live_bytes(program: Program, rank: int, saved: list[float]) -> float:
    """Most bytes that `rank` keeps for backward at once.

    Args:
        saved: bytes of one microbatch of each stage.
    """
    live = peak = 0.0
    for action in program.orders[rank]:
        if action.op is Op.F:
            live += saved[action.stage]
            peak = max(peak, live)
        elif action.op in (Op.B, Op.W):
            live -= saved[action.stage]
    return peak
