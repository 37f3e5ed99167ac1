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

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from recpipe.schedule.ir import COMPUTE_OPS, EMBEDDING_OPS, WHOLE_STEP, Action, Op, Program

COMPUTE, EMBEDDING, REDUCE = "compute", "embedding", "reduce"

_LANES = {
    **dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.EL, Op.PL, Op.EU, Op.DU, Op.OPT), COMPUTE),
    **dict.fromkeys((Op.ED, Op.PO, Op.EO, Op.EG, Op.DG), EMBEDDING),
    Op.R: REDUCE,
}
COLLECTIVES = frozenset({Op.ED, Op.PO, Op.EO, Op.EG, Op.DG, Op.R})
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
        self._channels: dict[tuple[Op, int, int], Channel] = {}
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
        key = (action.op, action.stage, action.replica)
        found = self._channels.get(key)
        if found is None:
            row, sender = self.place.ranks[action.replica], sent_stage(action)
            there, kind = (sender + 1, "activation") if action.op in (Op.SA, Op.RA) else (sender - 1, "gradient")
            found = self._channels[key] = Channel(row[sender], row[there], kind)
        return found

    def join(self, action: Action) -> tuple[object, ...] | None:
        """Key shared by the actions that must meet; None for an action that meets nobody."""
        op, stage, microbatch, replica, step = action
        if op is Op.SA or op is Op.SG:
            return op, stage, microbatch, replica, step
        if op is Op.RA:
            return Op.SA, stage - 1, microbatch, replica, step
        if op is Op.RG:
            return Op.SG, stage + 1, microbatch, replica, step
        if op is Op.R:
            return op, stage, step
        if action in self._block:
            return "block", self._block[action]
        return (op, microbatch, step) if op in COLLECTIVES else None

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
        half = Action(Op.I, *action[1:])
        return half if half in self._present else Action(Op.B, *action[1:])

    def weights(self, action: Action) -> Action:
        """The action that completes the weight gradient of this (stage, microbatch): W or B."""
        half = Action(Op.W, *action[1:])
        return half if half in self._present else Action(Op.B, *action[1:])

    def producers(self, action: Action) -> Sequence[Action]:
        """Actions of the same rank whose result `action` reads. They may be absent from a broken program."""
        op = action.op
        if op is Op.F:
            return self._forward(action)
        if op is Op.B or op is Op.I:
            return (Action(Op.F, *action[1:]), *self._incoming_gradient(action))
        if op is Op.SA:
            return (Action(Op.F, *action[1:]),)
        if op is Op.SG:
            return (self.backward(action),)
        if op is Op.W:
            return (Action(Op.I, *action[1:]),)
        if op in EMBEDDING_OPS:
            return tuple(self._embedding(action))
        if op is Op.R or (op is Op.OPT and not self.reduces):
            return self._gradients(action)
        return (Action(Op.R, *action[1:]),) if op is Op.OPT else ()

    def _is_local(self, action: Action, other_stage: int) -> bool:
        row = self.place.ranks[action.replica]
        return row[other_stage] == row[action.stage]

    def _forward(self, action: Action) -> Sequence[Action]:
        _, stage, microbatch, replica, step = action
        if stage == 0:
            return self._rows(action) if self.embeds else ()
        if self._is_local(action, stage - 1):
            return (Action(Op.F, stage - 1, microbatch, replica, step),)
        return (Action(Op.RA, *action[1:]),)

    def _rows(self, action: Action) -> Sequence[Action]:
        """The exchanges that bring the rows of a first stage."""
        replica, stage = self.place.home(self.place.rank_of(action))
        here = Action(Op.EO, stage, action.microbatch, replica, action.step)
        ahead = Action(Op.PO, stage, WHOLE_STEP, replica, action.step)
        return (here, ahead) if ahead in self._present else (here,)

    def _incoming_gradient(self, action: Action) -> Sequence[Action]:
        _, stage, microbatch, replica, step = action
        if stage == self.place.num_stages - 1:
            return ()
        if self._is_local(action, stage + 1):
            return (self.backward(Action(Op.B, stage + 1, microbatch, replica, step)),)
        return (Action(Op.RG, *action[1:]),)

    def _gradients(self, action: Action) -> Sequence[Action]:
        _, stage, _, replica, step = action
        numbers = range(self.program.microbatches)
        return tuple(self.weights(Action(Op.B, stage, microbatch, replica, step)) for microbatch in numbers)

    def _embedding(self, action: Action) -> Iterator[Action]:
        op, stage, microbatch, replica, step = action
        if op is Op.EG:
            for copy, first in self.place.slots[self.place.ranks[replica][stage]]:
                if first == 0:
                    yield self.backward(Action(Op.B, 0, microbatch, copy, step))
        elif op is Op.EU or op is Op.DG:
            for number in range(self.program.microbatches):
                yield Action(Op.EG, stage, number, replica, step)
        elif op is Op.DU:
            yield Action(Op.DG, stage, WHOLE_STEP, replica, step)
        elif op is not Op.ED:
            yield Action(Op.ED, stage, WHOLE_STEP, replica, step)
        # Which rows a neighbouring step does not touch is known once both are routed.
        if op is Op.PL:
            yield Action(Op.ED, stage, WHOLE_STEP, replica, step - 1)
        if op is Op.EG and Action(Op.DG, stage, WHOLE_STEP, replica, step) in self._present:
            yield Action(Op.ED, stage, WHOLE_STEP, replica, step + 1)
        if (op is Op.PO or op is Op.EO) and self.place.ranks[replica][stage] in self._tables:
            yield Action(Op.PL if op is Op.PO else Op.EL, stage, WHOLE_STEP, replica, step)

    def gate(self, rank: int) -> tuple[Action, Action] | None:
        """With a stagger: the compute action of `rank` - 1 that must end, and the first of `rank` that waits for it."""
        if not self.program.stagger or rank % self.place.width == 0:
            return None
        before, here = (
            [action for action in self.program.orders[r] if action.op in COMPUTE_OPS] for r in (rank - 1, rank)
        )
        return (before[min(self.program.stagger, len(before)) - 1], here[0]) if before and here else None
