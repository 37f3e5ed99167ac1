"""The schedule as data: actions, where they run, and the order each rank issues them in.

It is only records. What an action waits for is in `deps`, how it is written down in `text`, what it costs in `cost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

WHOLE_STEP = -1
"""Microbatch number of an action that happens once a step (``R3``, ``OPT3``, ``EL0``)."""


class Op(str, Enum):
    """What an action does. The set is closed: an executor has one handler for each."""

    ED = "ED"
    """Route the ids of the step to the owners of their rows."""
    PL = "PL"
    """Owners gather ahead of time the rows of this step that the step before does not touch."""
    PO = "PO"
    """Those rows travel to the consumers."""
    EL = "EL"
    """Owners gather the rows of the step that have not been gathered by `PL`."""
    EO = "EO"
    """Rows travel to the consumers: those that no earlier exchange of the step brought."""
    F = "F"
    """Forward of one stage."""
    B = "B"
    """Backward of one stage, input and weights together."""
    I = "I"  # noqa: E741 - the field's own letter for the input half of backward
    """Backward for the input only."""
    W = "W"
    """Backward for the weights, after `I`."""
    SA = "SA"
    """Send the activation to the next stage."""
    RA = "RA"
    """Receive the activation of the stage before."""
    SG = "SG"
    """Send the gradient to the stage before."""
    RG = "RG"
    """Receive the gradient of the next stage."""
    EG = "EG"
    """Row gradients travel to the owners: those that no later exchange of the step will carry."""
    EU = "EU"
    """Owners make the one exact table update of the step; with `DG`, of the rows that the next step touches."""
    DG = "DG"
    """The other row gradients travel, deferred: those of rows that the next step does not touch."""
    DU = "DU"
    """Owners make the one exact update of those rows, before any step looks them up."""
    R = "R"
    """Sum the gradient of a stage over its copies."""
    OPT = "OPT"
    """Dense optimizer of one stage."""

    # Enum hashes in Python code, five times slower than str; every dictionary of actions pays it.
    __hash__ = str.__hash__

    def __str__(self) -> str:
        return self.value


STEP_OPS = frozenset({Op.ED, Op.PL, Op.PO, Op.EL, Op.EU, Op.DG, Op.DU, Op.R, Op.OPT})
"""Ops that happen once a step and carry no microbatch."""

EMBEDDING_OPS = frozenset({Op.ED, Op.PL, Op.PO, Op.EL, Op.EO, Op.EG, Op.EU, Op.DG, Op.DU})
"""Ops of the table exchange. Their (replica, stage) is the home slot of the rank that takes part."""

COMPUTE_OPS = frozenset({Op.F, Op.B, Op.I, Op.W})
"""The ops a family orders; everything else is placed by passes."""


class Action(NamedTuple):
    """One thing one rank does. Immutable, hashable, ordered; its text is ``step:OPstage.microbatch@replica``.

    Args:
        op: what is done.
        stage: stage of the tower; for embedding ops the home stage of the rank that takes part.
        microbatch: number inside the step and the replica, or `WHOLE_STEP`.
        replica: copy of the pipeline (a direction of a bidirectional one, or a data-parallel copy).
        step: optimizer step, from 0.
    """

    op: Op
    stage: int
    microbatch: int = WHOLE_STEP
    replica: int = 0
    step: int = 0

    def __str__(self) -> str:
        step = f"{self.step}:" if self.step else ""
        microbatch = "" if self.microbatch == WHOLE_STEP else f".{self.microbatch}"
        replica = f"@{self.replica}" if self.replica else ""
        return f"{step}{self.op.value}{self.stage}{microbatch}{replica}"


@dataclass(frozen=True)
class Placement:
    """Where stages and tables live inside one lane.

    Args:
        ranks: ``ranks[replica][stage]`` is the rank that runs it.
        tables: ranks that hold table shards, ascending; empty when the program has no tables.
        width: ranks over which one tower's work is shared, the unit of costs and memory; 0 for all ranks here.
    """

    ranks: tuple[tuple[int, ...], ...]
    tables: tuple[int, ...] = ()
    width: int = 0

    def __post_init__(self) -> None:
        if not self.width:
            object.__setattr__(self, "width", self.num_ranks)

    @property
    def chunk(self) -> float:
        """Part of a rank's full share that one stage of an even tower is."""
        return self.width / self.num_stages

    @cached_property
    def num_replicas(self) -> int:
        return len(self.ranks)

    @cached_property
    def num_stages(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def num_ranks(self) -> int:
        return 1 + max(max(row) for row in self.ranks)

    @cached_property
    def slots(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """``slots[rank]``: the (replica, stage) pairs that the rank runs, ascending."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.num_ranks)]
        for replica, row in enumerate(self.ranks):
            for stage, rank in enumerate(row):
                found[rank].append((replica, stage))
        return tuple(tuple(slots) for slots in found)

    @cached_property
    def consumers(self) -> tuple[int, ...]:
        """Ranks that run stage 0 of some replica and therefore receive rows."""
        return tuple(sorted({row[0] for row in self.ranks}))

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Ranks that take part in the row exchange: those with tables and those that consume rows."""
        return tuple(sorted({*self.tables, *self.consumers})) if self.tables else ()

    def rank_of(self, action: Action) -> int:
        """Rank inside the lane that must issue `action`."""
        return self.ranks[action.replica][action.stage]

    def home(self, rank: int) -> tuple[int, int]:
        """The (replica, stage) that stands for `rank` in embedding actions."""
        return self.slots[rank][0]


@dataclass(frozen=True)
class Program:
    """A complete schedule: for each rank of one lane the order in which it issues its actions.

    Args:
        name: family it came from.
        placement: where stages and tables live.
        microbatches: microbatches of one replica in one step.
        steps: optimizer steps it covers.
        orders: ``orders[rank]`` is the issue order of that rank.
        lanes: identical data-parallel copies of everything above. Lane ``l`` has ranks and replicas shifted by
            ``l`` times those of one lane; collectives span all lanes.
        lag: how many optimizer steps old the weights of a forward may be. 0 is exact.
        stagger: rank r starts when rank r-1 has finished this many compute actions. It shapes memory, not results.
        fused: forwards that form one block with the next compute action of their rank (``F0.4+B3.1@1``): the block
            starts when both have their inputs and gives both results at its end.
    """

    name: str
    placement: Placement
    microbatches: int
    steps: int
    orders: tuple[tuple[Action, ...], ...]
    lanes: int = 1
    lag: int = 0
    stagger: int = 0
    fused: frozenset[Action] = frozenset()

    @property
    def num_ranks(self) -> int:
        """Ranks of all lanes."""
        return self.placement.num_ranks * self.lanes

    @property
    def num_actions(self) -> int:
        """Actions of all lanes."""
        return self.lanes * sum(len(order) for order in self.orders)

    @property
    def num_copies(self) -> int:
        """Copies of each stage, over replicas and lanes."""
        return self.placement.num_replicas * self.lanes

    def order_of(self, rank: int) -> tuple[Action, ...]:
        """Issue order of a rank in [0, num_ranks), lanes written out. Raises IndexError outside."""
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} outside [0, {self.num_ranks})")
        lane, local = divmod(rank, self.placement.num_ranks)
        shift = lane * self.placement.num_replicas
        if shift == 0:
            return self.orders[local]
        return tuple(action._replace(replica=action.replica + shift) for action in self.orders[local])

    def with_orders(self, orders: list[list[Action]]) -> Program:
        """The same program with other issue orders."""
        return replace(self, orders=tuple(tuple(order) for order in orders))
