"""What every action takes: plain numbers, and their binding to one program.

Times are in any one unit, bytes in any one unit, bandwidths in bytes per that time. Times of compute are for one
microbatch and the share of the tower that a rank holds when it is cut evenly over the ranks of a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from recpipe.errors import ConfigError
from recpipe.schedule.deps import Relation, is_communication
from recpipe.schedule.inside import Part
from recpipe.schedule.ir import Action, Op, Program


@dataclass(frozen=True)
class Link:
    """A tier of the network: n bytes occupy it for ``n / bandwidth`` and arrive `alpha` later."""

    alpha: float = 0.0
    bandwidth: float = inf

    def time(self, num_bytes: float) -> float:
        return self.alpha + num_bytes / self.bandwidth


_NOT_NEGATIVE = (
    "forward",
    "input",
    "weight",
    "overhead",
    "optimizer",
    "activation_bytes",
    "weight_bytes",
    "route",
    "lookup",
    "update",
    "row_bytes",
    "fused",
)


@dataclass(frozen=True)
class Cost:
    """Durations and sizes, independent of any family.

    Args:
        forward, input, weight: F, I, W of a rank's share, one microbatch; B is I + W.
        profile: relative weight of equal slices of the tower, first to last; empty for an even tower.
        weights: the same for gradient bytes and the optimizer; empty where they follow `profile`.
        cuts: size of the boundary behind each stage over `activation_bytes`; missing ones are 1.
        exchange: tier of table exchanges; None: the link between the first and the last rank.
        reduction: tier of reductions; None: the slowest link of their ring.
        overhead: fixed time of every F, B, I and W, whatever the size of the microbatch (kernel launches).
        optimizer: dense optimizer of a rank's share, once a step.
        activation_bytes: one boundary, one microbatch.
        weight_bytes: gradient bytes of a rank's share.
        near, far: links inside a node and between nodes.
        ranks_per_node: 0 puts every rank on its own node.
        delay: extra latency of a message between ranks i and i+1 of a lane, for each i; missing ones are 0.
        route, lookup, update: ED, the row gather (PL and EL together) and EU on one rank, once a step.
        row_bytes: row bytes that one consumer receives in a step; its gradients are as many.
        first_use: share of the rows first needed by each microbatch; empty for even shares.
        early: share of the rows that the step before does not touch, which may travel ahead; the gradients of as many may
            be deferred.
        beside_rows: share of a first stage's compute in blocks that need no rows. Above 0, and where the host is ``sync``,
            it runs while rows are on their way, and exchanges leave before it ends: see `recpipe.schedule.inside`.
        fused: time of a fused forward and backward over the sum of the two.
        measured: durations that take the place of what the numbers above give, by the text of an action without step and
            replica, or parts of it: ``F0.2``, ``EO.1``, ``F0``, ``EU``. They belong to one size of microbatch.
        issue: by op, or op and stage (``EG0``), what issuing a message or collective takes of the compute before which it
            is issued, where the host is ``sync``.
        shared: messages of a rank share its link (`recpipe.schedule.wires`); else each has it to itself.
        host: ``async`` issues everything at once (CUDA); ``sync`` issues an action after the compute before it (CPU).
    """

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    overhead: float = 0.0
    profile: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    cuts: tuple[float, ...] = ()
    exchange: Link | None = None
    reduction: Link | None = None
    optimizer: float = 0.0
    activation_bytes: float = 1.0
    weight_bytes: float = 1.0
    near: Link = Link()
    far: Link = Link()
    ranks_per_node: int = 0
    delay: tuple[float, ...] = ()
    route: float = 0.0
    lookup: float = 0.0
    update: float = 0.0
    row_bytes: float = 0.0
    first_use: tuple[float, ...] = ()
    early: float = 0.5
    beside_rows: float = 0.0
    fused: float = 1.0
    measured: Mapping[str, float] = field(default_factory=dict)
    issue: Mapping[str, float] = field(default_factory=dict)
    shared: bool = False
    host: str = "async"

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < inf:
                raise ConfigError(f"cost.{name}={getattr(self, name)}: must be finite and not negative.")
        for name in ("early", "beside_rows"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"cost.{name}={getattr(self, name)}: a share lies in [0, 1].")
        if self.host not in ("async", "sync"):
            raise ConfigError(f"cost.host={self.host!r}: write async (CUDA) or sync (CPU, gloo).")
        if any(share < 0 for share in (*self.profile, *self.first_use, *self.delay)):
            raise ConfigError("cost.profile, cost.first_use and cost.delay must not be negative.")

    @property
    def overlapped(self) -> bool:
        """Whether exchanges leave inside the compute of a first stage."""
        return self.beside_rows > 0 and self.host == "sync"

    def scaled(self, ratio: float) -> Cost:
        """The same step cut in ``1 / ratio`` times as many microbatches: compute and boundaries shrink by `ratio`."""
        if ratio == 1:
            return self
        keys = ("forward", "input", "weight", "activation_bytes")
        return replace(self, **{key: getattr(self, key) * ratio for key in keys})

    def link(self, first: int, second: int) -> Link:
        """Tier between two ranks (global numbers)."""
        together = self.ranks_per_node and first // self.ranks_per_node == second // self.ranks_per_node
        return self.near if together else self.far

    def share(self, stage: int, num_stages: int) -> float:
        """Part of the tower's cost in stage `stage`, times `num_stages`: 1.0 for an even tower."""
        return _share(self.profile, stage, num_stages)

    def weight_share(self, stage: int, num_stages: int) -> float:
        """The same for its weights."""
        return _share(self.weights or self.profile, stage, num_stages)

    def boundary_bytes(self, cut: int) -> float:
        """Bytes of one microbatch that cross the cut behind stage `cut`."""
        return self.activation_bytes * (self.cuts[cut] if cut < len(self.cuts) else 1.0)

    def compute(self, op: Op, stage: int, num_stages: int, num_ranks: int) -> float:
        """Duration of F, B, I, W or OPT of one stage of a tower cut in `num_stages` over `num_ranks`."""
        times = {
            Op.F: self.forward,
            Op.B: self.input + self.weight,
            Op.I: self.input,
            Op.W: self.weight,
            Op.OPT: self.optimizer,
        }
        fixed = 0.0 if op is Op.OPT else self.overhead
        share = self.weight_share if op is Op.OPT else self.share
        return times[op] * share(stage, num_stages) * num_ranks / num_stages + fixed

    def lanes_are_equal(self, program: Program) -> bool:
        """Whether every lane of `program` sees the same links, so that simulating one stands for all."""
        per_node, lane = self.ranks_per_node, program.placement.num_ranks
        return program.lanes == 1 or self.near == self.far or not per_node or 0 in (lane % per_node, per_node % lane)


def _share(profile: tuple[float, ...], stage: int, num_stages: int) -> float:
    if not profile:
        return 1.0
    low, high = stage / num_stages, (stage + 1) / num_stages
    n, total = len(profile), sum(profile)
    parts = (max(0.0, min(high, (k + 1) / n) - max(low, k / n)) * w for k, w in enumerate(profile))
    return sum(parts) * n * num_stages / total if total else 1.0


class Durations:
    """`Cost` bound to one program: the duration and the bytes of each of its actions. Sees lane 0."""

    def __init__(self, program: Program, cost: Cost) -> None:
        self.program, self.cost = program, cost
        self.place = program.placement
        self._early_steps, self._deferred_steps = (
            {a.step for order in program.orders for a in order if a.op is op} for op in (Op.PO, Op.DG)
        )
        self._table: dict[Op, Callable[[Action], float]] = {
            **dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.OPT), self._compute),
            Op.ED: lambda a: cost.route,
            Op.EU: lambda a: cost.update * self._update_share(a),
            Op.DU: lambda a: cost.update * self._update_share(a),
            Op.PL: lambda a: cost.lookup * self._row_share(a),
            Op.EL: lambda a: cost.lookup * self._row_share(a),
            Op.R: self._reduce,
        }
        self._exchange = self._exchange_link()
        self._block = Relation(program).block if program.fused else None
        self._cache: dict[tuple[object, ...], float] = {}
        self._issued = self._issue_times() if cost.issue and cost.host == "sync" else {}

    def _issue_times(self) -> dict[Action, float]:
        """For each compute action the time that issuing the messages between it and the compute before it takes."""
        found: dict[Action, float] = {}
        for order in self.program.orders:
            spent = 0.0
            for action in order:
                if is_communication(action.op):
                    spent += self._issue(action)
                else:
                    found[action], spent = spent, 0.0
        return found

    def _issue(self, action: Action) -> float:
        issue, op = self.cost.issue, action.op.value
        return issue.get(f"{op}{action.stage}", issue.get(op, 0.0))

    def of(self, action: Action) -> float:
        """Duration of `action`; for a message the same on both ends."""
        kind = action.step in self._early_steps, action.step in self._deferred_steps
        key = (action.op, action.stage, action.microbatch, action.replica, *kind)
        if key not in self._cache:
            known = self._measured(action) if self.cost.measured else None
            self._cache[key] = self._table.get(action.op, self._travel)(action) if known is None else known
        return self._cache[key]

    def _measured(self, action: Action) -> float | None:
        op, stage = action.op.value, action.stage
        names = (f"{op}{stage}.{action.microbatch}", f"{op}.{action.microbatch}", f"{op}{stage}", op)
        return next((self.cost.measured[name] for name in names if name in self.cost.measured), None)

    def part(self, part: Part) -> float:
        """Duration of a part of a forward or backward."""
        share = self.cost.beside_rows
        return self.of(part.action) * (share if part.beside else 1 - share)

    def node(self, action: Action) -> float:
        """Duration of the join that `action` stands for: of both halves if it opens a fused block."""
        backward = self._block(action) if self._block else None
        if backward is None:
            return self.of(action) + self._issued.get(action, 0.0)
        return (self.of(action) + self.of(backward)) * self.cost.fused + self._issued.get(action, 0.0)

    def occupies(self, action: Action) -> float:
        """How long `action` holds its lane. A message frees its channel when it is sent, not when it arrives."""
        if action.op not in (Op.SA, Op.RA, Op.SG, Op.RG):
            return self.of(action)
        link = self.cost.link(self.place.rank_of(action), self._other_end(action))
        return self._message(action) / link.bandwidth

    def num_bytes(self, action: Action) -> float:
        """Bytes that `action` puts on its link: at the sender, at one consumer, or at one rank of a reduction."""
        if action.op in (Op.SA, Op.SG):
            return self._message(action)
        if action.op in (Op.PO, Op.EO, Op.EG, Op.DG):
            return self.cost.row_bytes * self._row_share(action)
        if action.op is Op.R:
            copies = self.program.num_copies
            return 2 * (copies - 1) / copies * self.cost.weight_bytes * self._chunk(action)
        return 0.0

    def _chunk(self, action: Action) -> float:
        stages = self.place.num_stages
        return self.cost.weight_share(action.stage, stages) * self.place.chunk

    def _compute(self, action: Action) -> float:
        return self.cost.compute(action.op, action.stage, self.place.num_stages, self.place.width)

    def _row_share(self, action: Action) -> float:
        if action.op in (Op.EG, Op.DG):
            share = self._update_share(action)
            return share if action.op is Op.DG else share * self._first_use(action)
        early = self.cost.early if action.step in self._early_steps else 0.0
        if action.op in (Op.PL, Op.PO):
            return early
        return 1 - early if action.op is Op.EL else (1 - early) * self._first_use(action)

    def _update_share(self, action: Action) -> float:
        """Rows that the next step does not touch are as many as those that the step before does not."""
        deferred = self.cost.early if action.step in self._deferred_steps else 0.0
        return deferred if action.op in (Op.DG, Op.DU) else 1 - deferred

    def _first_use(self, action: Action) -> float:
        shares = self.cost.first_use[: self.program.microbatches]
        if not shares or not sum(shares):
            return 1 / self.program.microbatches
        number = action.microbatch
        if action.op is Op.EG:  # rows last used are the mirror of rows first used
            number = self.program.microbatches - 1 - number
        return shares[number] / sum(shares) if number < len(shares) else 0.0

    def _travel(self, action: Action) -> float:
        if action.op in (Op.PO, Op.EO, Op.EG, Op.DG):
            return self._exchange.time(self.num_bytes(action))
        here, there = self.place.rank_of(action), self._other_end(action)
        low = min(here, there) % self.place.width
        delay = self.cost.delay[low] if abs(here - there) == 1 and low < len(self.cost.delay) else 0.0
        return self.cost.link(here, there).time(self._message(action)) + delay

    def _message(self, action: Action) -> float:
        """Bytes of a message: the boundary between its two stages."""
        ahead = action.op in (Op.SA, Op.RG)
        return self.cost.boundary_bytes(action.stage if ahead else action.stage - 1)

    def _other_end(self, action: Action) -> int:
        ahead = action.op in (Op.SA, Op.RG)
        return self.place.ranks[action.replica][action.stage + (1 if ahead else -1)]

    def _exchange_link(self) -> Link:
        if self.cost.exchange is not None:
            return self.cost.exchange
        last = self.program.num_ranks - 1
        return self.cost.link(0, last)

    def _reduce(self, action: Action) -> float:
        """A ring over all copies: 2(n-1) hops, each of 1/n of the bytes, at the slowest link of the ring."""
        copies = self.program.num_copies
        if copies == 1:
            return 0.0
        link = self.cost.reduction or self._slowest(action)
        return 2 * (copies - 1) * link.alpha + self.num_bytes(action) / link.bandwidth

    def _slowest(self, action: Action) -> Link:
        """Slowest link of the ring over the copies of a stage."""
        program = self.program
        lane = (program.lanes - 1) * self.place.num_ranks
        ranks = sorted({row[action.stage] for row in self.place.ranks} | {self.place.ranks[0][action.stage] + lane})
        return max(
            (self.cost.link(a, b) for a, b in zip(ranks, ranks[1:], strict=False)),
            key=lambda tier: tier.time(self.num_bytes(action)),
            default=self.cost.far,
        )
