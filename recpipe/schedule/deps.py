"""THE dependency relation. Checker, simulator, drawing and executor all ask here and nowhere else.

An action waits for three things:

- its *producers* (`Relation.producers`): actions of the same rank whose result it reads, always issued earlier;
- the action before it in its *lane* (`Relation.lane`): a lane runs its actions one at a time in issue order;
- the other members of its *join* (`Relation.join`): both ends of a message, all members of a collective, both halves
  of a fused block.

So ranks only ever meet in joins. A message has a *channel* (source, destination, kind); a channel is a lane of its own
at both ends, so two directions between the same ranks never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from recpipe.schedule.ir import COMPUTE_OPS, EMBEDDING_OPS, WHOLE_STEP, Action, Op, Program

COMPUTE, EMBEDDING, REDUCE = "compute", "embedding", "reduce"

_LANES = {
    **dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.EL, Op.PL, Op.EU, Op.OPT), COMPUTE),
    **dict.fromkeys((Op.ED, Op.PO, Op.EO, Op.EG), EMBEDDING),
    Op.R: REDUCE,
}
COLLECTIVES = frozenset({Op.ED, Op.PO, Op.EO, Op.EG, Op.R})
SENDS = {Op.SA: Op.RA, Op.SG: Op.RG}
RECEIVES = {receive: send for send, receive in SENDS.items()}


class Channel(NamedTuple):
    """One ordered stream of messages: from rank, to rank, ``activation`` or ``gradient``."""

    source: int
    target: int
    kind: str

    def __str__(self) -> str:
        return f"{self.source}>{self.target} {self.kind}"


def is_message(op: Op) -> bool:
    return op in SENDS or op in RECEIVES


def is_communication(op: Op) -> bool:
    return is_message(op) or op in COLLECTIVES


def sent_stage(action: Action) -> int:
    """Stage at the sending end of a message: names the message on both ends."""
    if action.op is Op.RA:
        return action.stage - 1
    return action.stage + 1 if action.op is Op.RG else action.stage


class Relation:
    """The relation of one program: what `action` waits for, given how the program splits its work."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.place = program.placement
        self._present = {action for order in program.orders for action in order}
        self.reduces = program.num_copies > 1
        self.embeds = bool(self.place.tables)
        self._tables = frozenset(self.place.tables)
        self._block = dict(self._blocks()) if program.fused else {}
        self._partner = {name: action for action, name in self._block.items() if action != name}

    def _blocks(self) -> Iterator[tuple[Action, Action]]:
        """Both actions of every fused block, each with the forward that names it."""
        for order in self.program.orders:
            compute = [action for action in order if action.op in COMPUTE_OPS]
            for forward, backward in zip(compute, compute[1:], strict=False):
                if forward in self.program.fused:
                    yield forward, forward
                    yield backward, forward

    def has(self, action: Action) -> bool:
        return action in self._present

    def is_block(self, first: Action, second: Action) -> bool:
        """Whether the two are the halves of one fused block."""
        return first in self.program.fused and self._block.get(second) == first

    def block(self, forward: Action) -> Action | None:
        """The backward that `forward` is fused with."""
        return self._partner.get(forward)

    def lane(self, action: Action) -> str | Channel:
        """The lane that runs `action` on its rank."""
        return _LANES[action.op] if action.op in _LANES else self.channel(action)

    def channel(self, action: Action) -> Channel:
        """Channel of a message."""
        row = self.place.ranks[action.replica]
        sender = sent_stage(action)
        if action.op in (Op.SA, Op.RA):
            return Channel(row[sender], row[sender + 1], "activation")
        return Channel(row[sender], row[sender - 1], "gradient")

    def join(self, action: Action) -> tuple[object, ...] | None:
        """Key shared by the actions that must meet; None for an action that meets nobody."""
        op, step = action.op, action.step
        if is_message(op):
            kind = "activation" if op in (Op.SA, Op.RA) else "gradient"
            return kind, sent_stage(action), action.microbatch, action.replica, step
        if op is Op.R:
            return op, action.stage, step
        if action in self._block:
            return "block", self._block[action]
        return (op, action.microbatch, step) if op in COLLECTIVES else None

    def members(self, action: Action) -> list[Action]:
        """Every action of lane 0 that joins `action`, itself included, whether or not it is present."""
        op, stage = action.op, sent_stage(action)
        if op in (Op.SA, Op.RA):
            return [action._replace(op=Op.SA, stage=stage), action._replace(op=Op.RA, stage=stage + 1)]
        if op in (Op.SG, Op.RG):
            return [action._replace(op=Op.SG, stage=stage), action._replace(op=Op.RG, stage=stage - 1)]
        if op is Op.R:
            return [action._replace(replica=k) for k in range(self.place.num_replicas)]
        return [self.at(action, rank) for rank in self.place.members] if op in COLLECTIVES else [action]

    def at(self, action: Action, rank: int) -> Action:
        """The same embedding action as taken part in by `rank`."""
        replica, stage = self.place.home(rank)
        return action._replace(stage=stage, replica=replica)

    def backward(self, action: Action) -> Action:
        """The action that gives the input gradient of this (stage, microbatch): I if the program splits it, else B."""
        half = action._replace(op=Op.I)
        return half if half in self._present else action._replace(op=Op.B)

    def weights(self, action: Action) -> Action:
        """The action that completes the weight gradient of this (stage, microbatch): W or B."""
        half = action._replace(op=Op.W)
        return half if half in self._present else action._replace(op=Op.B)

    def producers(self, action: Action) -> Iterator[Action]:
        """Actions of the same rank whose result `action` reads. They may be absent from a broken program."""
        op = action.op
        if op is Op.F:
            yield from self._forward(action)
        elif op in (Op.B, Op.I):
            yield action._replace(op=Op.F)
            yield from self._incoming_gradient(action)
        elif op is Op.W:
            yield action._replace(op=Op.I)
        elif op is Op.SA:
            yield action._replace(op=Op.F)
        elif op is Op.SG:
            yield self.backward(action)
        elif op in EMBEDDING_OPS:
            yield from self._embedding(action)
        elif op is Op.R:
            yield from self._gradients(action)
        elif op is Op.OPT:
            yield from [action._replace(op=Op.R)] if self.reduces else self._gradients(action)

    def _is_local(self, action: Action, other_stage: int) -> bool:
        row = self.place.ranks[action.replica]
        return row[other_stage] == row[action.stage]

    def _forward(self, action: Action) -> Iterator[Action]:
        if action.stage == 0:
            if self.embeds:
                rank = self.place.rank_of(action)
                yield self.at(action._replace(op=Op.EO), rank)
                ahead = self.at(action._replace(op=Op.PO, microbatch=WHOLE_STEP), rank)
                if ahead in self._present:
                    yield ahead
        elif self._is_local(action, action.stage - 1):
            yield action._replace(stage=action.stage - 1)
        else:
            yield action._replace(op=Op.RA)

    def _incoming_gradient(self, action: Action) -> Iterator[Action]:
        if action.stage == self.place.num_stages - 1:
            return
        if self._is_local(action, action.stage + 1):
            yield self.backward(action._replace(stage=action.stage + 1))
        else:
            yield action._replace(op=Op.RG)

    def _gradients(self, action: Action) -> Iterator[Action]:
        for microbatch in range(self.program.microbatches):
            yield self.weights(action._replace(microbatch=microbatch))

    def _embedding(self, action: Action) -> Iterator[Action]:
        op, step = action.op, action.step
        rank = self.place.rank_of(action)
        whole = action._replace(microbatch=WHOLE_STEP)
        if op in (Op.EL, Op.PL):
            yield whole._replace(op=Op.ED)
        if op is Op.PL:  # which rows the step before does not touch is known once both are routed
            yield whole._replace(op=Op.ED, step=step - 1)
        if op in (Op.PO, Op.EO):
            yield whole._replace(op=Op.ED)
            if rank in self._tables:
                yield whole._replace(op=Op.PL if op is Op.PO else Op.EL)
        if op is Op.EG:
            for replica, stage in self.place.slots[rank]:
                if stage == 0:
                    yield self.backward(Action(Op.B, 0, action.microbatch, replica, step))
        if op is Op.EU:
            for microbatch in range(self.program.microbatches):
                yield action._replace(op=Op.EG, microbatch=microbatch)

    def gate(self, rank: int) -> tuple[Action, Action] | None:
        """With a stagger: the compute action of `rank` - 1 that must end, and the first of `rank` that waits for it."""
        if not self.program.stagger or rank == 0:
            return None
        before, here = (
            [action for action in self.program.orders[r] if action.op in COMPUTE_OPS] for r in (rank - 1, rank)
        )
        return (before[min(self.program.stagger, len(before)) - 1], here[0]) if before and here else None
