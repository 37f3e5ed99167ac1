"""Every number of a report, as plain values: computed once, shown by the terminal, the page and `plan.json` alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from recpipe.planner.designs import Design
from recpipe.planner.found import Found, Rated
from recpipe.planner.loads import Chosen, Loads, add_all
from recpipe.planner.memory import RankMemory, cluster_of, rank_memory
from recpipe.planner.plan import kernel_of
from recpipe.planner.problem import Problem
from recpipe.schedule.metrics import measure

CODES = {
    "replicated": "DP",
    "table_wise": "TW",
    "column_wise": "CW",
    "row_wise": "RW",
    "table_row_wise": "TWRW",
    "table_column_wise": "TWCW",
    "grid": "GS",
}
GROUPS = {
    "F": "tower",
    "B": "tower",
    "I": "tower",
    "W": "tower",
    "EL": "table lookup",
    "PL": "table lookup",
    "EU": "table update",
    "DU": "table update",
    "ED": "ids",
    "EO": "rows",
    "PO": "rows",
    "EG": "row gradients",
    "DG": "row gradients",
    "SA": "messages",
    "RA": "messages",
    "SG": "messages",
    "RG": "messages",
    "R": "reduction",
    "OPT": "dense optimizer",
}
KINDS = {
    "tower": "compute",
    "dense optimizer": "compute",
    "table lookup": "memory",
    "table update": "memory",
    "ids": "network",
    "rows": "network",
    "row gradients": "network",
    "messages": "network",
    "reduction": "network",
}


def facts(problem: Problem, found: Found) -> dict[str, Any]:
    """Numbers of the best plan of a search."""
    return {**plan_facts(problem, found.best), "search": _search(found)}


def plan_facts(problem: Problem, rated: Rated) -> dict[str, Any]:
    """Numbers of one rated plan."""
    design, assignment = rated.design, rated.assignment
    assert design is not None and assignment is not None
    model, cluster = design.model(), cluster_of(problem, design)
    loads = add_all(cluster, assignment.chosen)
    memory = rank_memory(problem, design, assignment.chosen)
    step, price = assignment.step, problem.topology.price_per_hour
    rows = problem.global_batch / step * 1e3
    ranks = _ranks(problem, rated, loads, memory)
    return {
        "choice": rated.choice.label,
        "topology": _topology(problem),
        "step_ms": step,
        "rows_per_second": rows,
        "global_batch": problem.global_batch,
        "batch_size": problem.global_batch // design.lanes,
        "efficiency": _tower_ms(problem, rated) / step,
        "price_per_hour": price,
        "price_per_billion_rows": price / rows / 3600 * 1e9 if price else None,
        "times_ms": assignment.times._asdict(),
        "bounds": _bounds(model.chain(assignment.times)),
        "exchange_ms": _exchange(rated),
        "bubble": _bubble(rated),
        "early_share": model.early,
        "imbalance": _imbalance(ranks),
        "ranks": ranks,
        "tables": _tables(problem, rated, loads),
        "stages": _stages(problem, rated),
        "traffic": {name: float(sent.mean()) for name, sent in traffic_by_rank(problem, design, loads).items()},
        "busiest": _busiest(problem, ranks, assignment.chosen),
    }


def traffic_by_rank(problem: Problem, design: Design, loads: Loads) -> dict[str, np.ndarray]:
    """Bytes that each rank sends to others in a step, under the names of `recpipe.comm.Traffic`."""
    cluster = loads.cluster
    others = len(cluster.consumers) - cluster.is_consumer
    back, ids = ((own.sum() - own) * cluster.is_consumer for own in (loads.own, loads.ids))
    found = {"ids": ids, "rows": loads.own * others, "row_gradients": back}
    return found | {name: np.tile(sent, design.lanes) for name, sent in _tower_traffic(problem, design).items()}


def _tower_traffic(problem: Problem, design: Design) -> dict[str, np.ndarray]:
    """The same for what the tower sends, for the ranks of one lane."""
    place, program = design.place, design.program
    copies = program.num_copies
    rows = problem.global_batch / copies  # of all microbatches of a replica together
    found = {name: np.zeros(place.num_ranks) for name in ("dense", "activation", "gradient")}
    for rank, (replica, stage) in ((rank, slot) for rank, slots in enumerate(place.slots) for slot in slots):
        part = design.partition[stage]
        weights = sum(problem.tower.blocks[b].parameters for b in part) * problem.element
        found["dense"][rank] += 2 * (copies - 1) / copies * weights
        for name, ahead, edge in (("activation", 1, part.stop), ("gradient", -1, part.start)):
            other = stage + ahead
            if 0 <= other < place.num_stages and place.ranks[replica][other] != rank:
                found[name][rank] += problem.tower.cut_elements[edge] * rows * problem.element
    return {name: sent for name, sent in found.items() if sent.any()}


def _topology(problem: Problem) -> dict[str, Any]:
    topology = problem.topology
    return {
        "name": topology.name,
        "ranks": topology.world,
        "nodes": topology.num_nodes,
        "measured": topology.measured,
        "reserved": topology.reserved,
    }


def _tower_ms(problem: Problem, rated: Rated) -> float:
    """Mean milliseconds a rank spends in the tower, in a step."""
    assert rated.design is not None
    cost, program = rated.design.cost, rated.design.program
    each = cost.forward + cost.input + cost.weight
    return each * program.microbatches * program.placement.num_replicas


def _search(found: Found) -> dict[str, Any]:
    runners = [
        {"plan": one.choice.label, "step_ms": _finite(one.step), "tables": one.seed, "why": _why(one, found.best)}
        for one in found.rated[1:]
        if one.assignment is not None
    ]
    dropped: dict[str, int] = {}
    for one in found.rated:
        if one.assignment is None:
            reason = one.note.split(":")[0]
            dropped[reason] = dropped.get(reason, 0) + 1
    return {
        "looked": found.looked,
        "rated": len(runners) + 1,
        "seconds": found.seconds,
        "timed_out": found.timed_out,
        "proven": found.proven,
        "bound_ms": found.bound,
        "gap": found.best.step / found.bound - 1 if found.bound else 0.0,
        "from": found.best.seed,
        "named": {name: _finite(one.step) for name, one in found.named.items()},
        "runners": runners,
        "dropped": dropped,
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _why(one: Rated, best: Rated) -> str:
    """Why a design lost: what its longest chain has more of."""
    assert one.assignment is not None and best.assignment is not None
    if one.assignment.shortfall > best.assignment.shortfall:
        return f"{one.assignment.shortfall / 1e9:.3g} GB too much for one rank"
    if one.step < best.step and one.assignment.shortfall == best.assignment.shortfall:
        return f"{1 - one.step / best.step:.1%} faster, which predictions do not tell apart; the plan is simpler"
    assert one.design is not None and best.design is not None
    mine = _bounds(one.design.model().chain(one.assignment.times))["parts"]
    others = _bounds(best.design.model().chain(best.assignment.times))["parts"]
    more = {name: ms - others.get(name, 0.0) for name, ms in mine.items()}
    name = max(more, key=lambda key: more[key], default="")
    return f"{more[name]:.3g} ms more {name} on the longest chain" if more and more[name] > 1e-6 else "as fast"


def _bounds(chain: dict[str, float]) -> dict[str, Any]:
    """What the longest chain of a step consists of, and so what bounds it."""
    parts: dict[str, float] = {}
    for op, ms in chain.items():
        parts[GROUPS[op]] = parts.get(GROUPS[op], 0.0) + ms
    kinds: dict[str, float] = {}
    for name, ms in parts.items():
        kinds[KINDS[name]] = kinds.get(KINDS[name], 0.0) + ms
    parts = {name: ms for name, ms in sorted(parts.items(), key=lambda item: -item[1]) if ms > 0}
    return {"parts": parts, "kinds": kinds, "by": max(kinds, key=lambda key: kinds[key], default="")}


def _exchange(rated: Rated) -> dict[str, dict[str, float]]:
    """Each kind of communication a step: on its way, hidden under compute, exposed."""
    assert rated.design is not None and rated.assignment is not None
    model, program = rated.design.model(), rated.design.program
    metrics = measure(program, model.timeline(rated.assignment.times), model.cost)
    found: dict[str, dict[str, float]] = {}
    for op, one in metrics.exchange.items():
        part = found.setdefault(GROUPS[op], {"total": 0.0, "hidden": 0.0, "exposed": 0.0})
        count = _members(rated, op)
        for key in part:
            part[key] += getattr(one, key) / program.steps / count
    return {name: part for name, part in found.items() if part["total"] > 0}


def _members(rated: Rated, op: str) -> int:
    """Ranks of one lane over which the metrics have summed."""
    assert rated.design is not None
    place = rated.design.place
    return len(place.consumers) if GROUPS[op] in ("ids", "rows", "row gradients") else place.num_ranks


def _bubble(rated: Rated) -> float:
    assert rated.design is not None and rated.assignment is not None
    model = rated.design.model()
    return measure(rated.design.program, model.timeline(rated.assignment.times), model.cost).bubble_ratio


def _ranks(problem: Problem, rated: Rated, loads: Loads, memory: list[RankMemory]) -> list[dict[str, Any]]:
    """The rank table: memory and the milliseconds of each phase."""
    assert rated.design is not None and rated.assignment is not None
    design, cluster = rated.design, loads.cluster
    width = design.place.num_ranks
    cost, per_step = design.cost, design.program.microbatches
    lookup, update = loads.lookup_by_rank() * 1e3, loads.update_by_rank() * 1e3
    exchange = cluster.exchange_by_rank(loads.own) * 1e3
    ids = cluster.exchange_by_rank(loads.ids) * 1e3
    shards = _shards(problem, rated.assignment.chosen)
    consumers = len(cluster.consumers)
    found = []
    for rank, bytes_of in enumerate(memory):
        limit = problem.topology.rank_groups[rank].memory * (1 - problem.topology.reserved)
        slots = design.place.slots[rank % width]
        forward, inputs, weights = (
            per_step * sum(part * cost.share(stage, design.place.num_stages) * design.place.chunk for _, stage in slots)
            for part in (cost.forward, cost.input, cost.weight)
        )
        found.append(
            {
                "rank": rank,
                "node": problem.topology.node_of[rank],
                "stages": sorted({stage for _, stage in slots}),
                "memory": bytes_of.total,
                "memory_share": bytes_of.total / limit,
                "memory_parts": {key: float(value) for key, value in bytes_of.__dict__.items()},
                "forward_compute_ms": forward + float(lookup[rank]),
                "forward_comms_ms": float(exchange[rank]),
                "backward_compute_ms": inputs + weights + float(update[rank]),
                "backward_comms_ms": float(exchange[rank]),
                "prefetch_ms": float(ids[rank]),
                "table_ms": float(lookup[rank] + update[rank] + 2 * exchange[rank] + ids[rank]),
                "input_mb": float(loads.ids[rank]) * consumers / 1e6,
                "output_mb": float(loads.own[rank]) * consumers / 1e6,
                "shards": shards[rank],
            }
        )
    return found


def _shards(problem: Problem, chosen: tuple[Chosen, ...]) -> list[dict[str, int]]:
    """Shards of each rank by type code."""
    found: list[dict[str, int]] = [{} for _ in range(problem.topology.world)]
    for kind, ranks in chosen:
        code = CODES[kind.sharding]
        for rank in range(problem.topology.world) if kind.replicated else ranks:
            found[rank][code] = found[rank].get(code, 0) + 1
    return found


def _tables(problem: Problem, rated: Rated, loads: Loads) -> list[dict[str, Any]]:
    """The table table."""
    assert rated.design is not None and rated.assignment is not None
    consumers, cluster = len(rated.design.consumers), loads.cluster
    lookup, update = float(cluster.gather_rate.min()), float(cluster.update_rate.min())
    rows = problem.global_batch / consumers
    found = []
    for demand, (kind, ranks) in zip(problem.tables, rated.assignment.chosen, strict=True):
        copies = problem.topology.world if kind.replicated else 1
        found.append(
            {
                "table": demand.spec.name,
                "sharding": kind.sharding,
                "code": CODES[kind.sharding],
                "exchange": "-" if kind.replicated else kind.exchange,
                "kernel": kernel_of(kind.sharding, kind.exchange),
                "lookup_ms": float(kind.gather.max()) / lookup * 1e3,
                "update_ms": float(kind.update.max()) / update * 1e3,
                "storage": float((kind.held + kind.state).sum()) * copies,
                "mean_ids": demand.mean_ids,
                "unique_share": demand.unique_share(rows),
                "output_mb": float(kind.own.sum()) * consumers / 1e6 if not kind.replicated else kind.reduced / 1e6,
                "dim": demand.spec.dim,
                "num_rows": demand.spec.num_rows,
                "ranks": list(range(problem.topology.world)) if kind.replicated else list(ranks),
            }
        )
    return found


def _stages(problem: Problem, rated: Rated) -> list[dict[str, Any]]:
    """Blocks and cost of each stage."""
    assert rated.design is not None
    design, blocks = rated.design, problem.tower.blocks
    total = sum(design.cost.profile) or 1.0
    return [
        {
            "stage": number,
            "blocks": [blocks[b].name for b in part],
            "share": design.cost.profile[number] / total,
            "parameters": sum(blocks[b].parameters for b in part),
            "ranks": sorted({row[number] for row in design.place.ranks}),
        }
        for number, part in enumerate(design.partition)
    ]


def _busiest(problem: Problem, ranks: list[dict[str, Any]], chosen: tuple[Chosen, ...]) -> dict[str, Any]:
    """The rank whose tables take longest and the table that takes most of it; the fullest rank."""
    slow = max(ranks, key=lambda one: one["table_ms"])
    full = max(ranks, key=lambda one: one["memory_share"])

    def part(entry: Chosen) -> float:
        kind, owners = entry
        at = [i for i, rank in enumerate(owners) if rank == slow["rank"]]
        work = kind.gather + kind.update
        return float(work.sum()) if kind.replicated else float(work[at].sum())

    index = max(range(len(chosen)), key=lambda i: part(chosen[i]))
    return {"rank": slow["rank"], "table": problem.tables[index].spec.name, "fullest": full["rank"]}


def _imbalance(ranks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Distance of the ranks' shares from even ones, for table time and for memory."""
    return {
        name: _distances(np.array([one[key] for one in ranks]))
        for name, key in (("time", "table_ms"), ("memory", "memory"))
    }


def _distances(values: np.ndarray) -> dict[str, float]:
    """Largest difference of a share (what TorchRec calls total variation), chi squared, KL divergence, largest over mean."""
    if not values.sum():
        return {"total_variation": 0.0, "chi": 0.0, "kl": 0.0, "max_over_mean": 1.0}
    p, even = values / values.sum(), 1 / len(values)
    kl = float((p[p > 0] * np.log(p[p > 0] / even)).sum())
    return {
        "total_variation": float(np.abs(p - even).max()),
        "chi": float(((p - even) ** 2 / even).sum()),
        "kl": kl,
        "max_over_mean": float(p.max() / even),
    }
