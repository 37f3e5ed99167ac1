"""Bytes of a rank, by what they are for. Tables are `table_costs`; this is everything else, and the sum of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from recpipe.planner.designs import Design, live_bytes
from recpipe.planner.loads import Chosen, Cluster
from recpipe.planner.problem import DENSE_STATE, Problem

_INPUT_COPIES = 3
"""Batches that are being read, routed or trained at one time."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank.

    Args:
        tables, table_state: rows and their optimizer state.
        weights, weight_state, weight_gradients: of the rank's stages of the tower.
        activations: kept for backward when the schedule holds most of them.
        rows: received rows, their gradients and indices, and what an owner has on its way.
        buffers: messages between stages, pooled rows and their gradient.
        input: batches.
    """

    tables: float
    table_state: float
    weights: float
    weight_state: float
    weight_gradients: float
    activations: float
    rows: float
    buffers: float
    input: float

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def tower_bytes(problem: Problem, design: Design) -> list[dict[str, float]]:
    """What the tower needs on each rank of one lane; every lane is alike."""
    rows = problem.global_batch / design.lanes / design.choice.microbatches
    blocks, place = problem.tower.blocks, design.place
    saved = [sum(blocks[b].saved for b in part) * rows for part in design.partition]
    weights = [sum(blocks[b].parameters for b in part) * problem.element for part in design.partition]
    found = []
    for rank in range(place.num_ranks):
        own = sum(weights[stage] for stage in {stage for _, stage in place.slots[rank]})
        reads = rank in place.consumers
        found.append(
            {
                "weights": own,
                "weight_state": own * DENSE_STATE[problem.dense_optimizer],
                "weight_gradients": own,
                "activations": live_bytes(design.program, rank, saved),
                "buffers": _buffers(problem, design, rank, rows),
                "input": _input(problem, design) if reads else 0.0,
            }
        )
    return found


def _buffers(problem: Problem, design: Design, rank: int, rows: float) -> float:
    """Two messages on their way at each boundary of the rank; a consumer's pooled rows and their gradient."""
    place = design.place
    cut = [problem.tower.cut_elements[part.stop] for part in design.partition]
    crossing = 0.0
    for _, stage in place.slots[rank]:
        before = cut[stage - 1] if stage else 0
        behind = cut[stage] if stage + 1 < place.num_stages else 0
        crossing += 2 * (before + behind)
    pooled = 2 * sum(demand.spec.dim for demand in problem.tables) if rank in place.consumers else 0
    return (crossing + pooled) * rows * problem.element


def _input(problem: Problem, design: Design) -> float:
    return _INPUT_COPIES * problem.input_row_bytes * problem.global_batch / len(design.consumers)


def cluster_of(problem: Problem, design: Design) -> Cluster:
    """The machines with what the tower leaves free."""
    lane = np.array([sum(parts.values()) for parts in tower_bytes(problem, design)])
    limit = np.array([group.memory * (1 - problem.topology.reserved) for group in problem.topology.rank_groups])
    return Cluster(problem.topology, design.consumers, limit - np.tile(lane, design.lanes))


def rank_memory(problem: Problem, design: Design, chosen: Sequence[Chosen]) -> list[RankMemory]:
    """Bytes of every rank by what they are for."""
    world, tower = problem.topology.world, tower_bytes(problem, design)
    tables, state, rows = np.zeros(world), np.zeros(world), np.zeros(world)
    is_consumer = np.zeros(world)
    is_consumer[list(design.consumers)] = 1.0
    for kind, ranks in chosen:
        at = np.arange(world) if kind.replicated else np.asarray(ranks)
        np.add.at(tables, at, kind.held)
        np.add.at(state, at, kind.state)
        np.add.at(rows, at, kind.moving)
        rows += kind.consumer_held * is_consumer
    width = design.place.num_ranks
    return [RankMemory(tables=tables[r], table_state=state[r], rows=rows[r], **tower[r % width]) for r in range(world)]
