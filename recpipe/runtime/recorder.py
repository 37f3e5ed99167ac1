"""Records when every action ran on this rank, and turns that into the simulator's own events.

Compute is shown without the time that it was held up by messages, and with what this thread did since the compute before
to issue messages (dedup, packing): on a CPU nothing else can run meanwhile. Communication is shown from its issue until
everything had left and arrived. Times are milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from recpipe.comm.traffic import Message, Traffic
from recpipe.runtime.place import Place
from recpipe.schedule.ir import WHOLE_STEP, Action, Op
from recpipe.schedule.timeline import Event, lane_name

_PURPOSES = {
    Op.ED: ("ids",),
    Op.PO: ("rows",),
    Op.EO: ("rows",),
    Op.EG: ("row_gradients",),
    Op.DG: ("row_gradients",),
    Op.SA: ("activation",),
    Op.RA: ("activation",),
    Op.SG: ("gradient",),
    Op.RG: ("gradient",),
    Op.R: ("dense",),
}


@dataclass(frozen=True)
class Wait:
    """Time that one action was held up by the communication of another.

    Args:
        rank: where.
        waiting: the action that could not go on.
        source: what it waited for.
        milliseconds: how long.
    """

    rank: int
    waiting: Action
    source: Action
    milliseconds: float


class Recorder:
    """Times of this rank for some steps.

    Args:
        traffic: records messages while this records actions.
        place: gives global rank and replica numbers.
        first, stop: global steps [first, stop).
        offset: seconds to add to this rank's clock to read that of rank 0.
    """

    def __init__(self, traffic: Traffic, place: Place, first: int, stop: int, offset: float = 0.0) -> None:
        self._traffic, self._place, self._offset = traffic, place, offset
        self.first, self.stop = first, stop
        self._shift = 0
        self._ran: list[tuple[Action, float, float]] = []
        self._inside: dict[object, Action] = {}

    def begin_step(self, step: int, base: int) -> None:
        """Switches recording on or off for the actions issued from here on.

        Args:
            step: the step that begins, counted as in actions.
            base: the global step that actions call 0.
        """
        self._traffic.recording = self.first <= base + step < self.stop
        self._shift = base - self.first

    @property
    def is_on(self) -> bool:
        return self._traffic.recording

    def enter(self, action: Action, inside: Action | None = None) -> None:
        """Messages from here on belong to `action`, which may be issued `inside` another."""
        self._traffic.label = action
        if inside is not None:
            self._inside[action] = inside

    def ran(self, action: Action, start: float, end: float) -> None:
        """`action` was handled between two readings of `time.perf_counter`."""
        self._ran.append((action, start, end))

    def events(self) -> list[Event]:
        """What ran when, on rank 0's clock."""
        messages, held = self._by_action(), self._held()
        found, issuing = [], 0.0
        for action, start, end in self._ran:
            worked = max(0.0, end - start - held.get(action, 0.0))
            if action.op in _PURPOSES:
                mine = messages.get(action, [])
                issuing += worked
                start = min((m.issued for m in mine), default=start)
                end = max((m.done or end for m in mine), default=end)
            else:
                start, issuing = end - worked - issuing, 0.0
            found.append(self._event(action, start, end))
        return found

    def worked(self) -> list[tuple[Action, float]]:
        """Milliseconds that this thread worked on each action, waiting left out."""
        held = self._held()
        return [(a, max(0.0, end - start - held.get(a, 0.0)) * 1000) for a, start, end in self._ran]

    def sent(self) -> list[tuple[Action, int]]:
        """Bytes that each recorded message took from here to other ranks."""
        return [(action, m.num_bytes) for action, messages in self._by_action().items() for m in messages]

    def waits(self) -> list[Wait]:
        """Everything that held an action up."""
        found = []
        for source, messages in self._by_action().items():
            for message in messages:
                for waiting, start, end in message.waits:
                    if isinstance(waiting, Action):
                        name, cause = (self._named(one) for one in (waiting, source))
                        found.append(Wait(self._place.rank, name, cause, (end - start) * 1000))
        return found

    def _by_action(self) -> dict[Action, list[Message]]:
        """Messages of each communicating action; a bucket that left inside a backward belongs to its stage's R."""
        found: dict[Action, list[Message]] = defaultdict(list)
        for message in self._traffic.messages:
            action = message.label
            assert isinstance(action, Action)
            if message.purpose == "dense":
                action = action._replace(op=Op.R, microbatch=WHOLE_STEP)
            if message.purpose in _PURPOSES.get(action.op, ()):
                found[action].append(message)
        return found

    def _held(self) -> dict[object, float]:
        """Seconds that each action was held up, by what was issued inside it, too."""
        held: dict[object, float] = defaultdict(float)
        for message in self._traffic.messages:
            for waiting, start, end in message.waits:
                held[waiting] += end - start
                if waiting in self._inside:
                    held[self._inside[waiting]] += end - start
        return held

    def _named(self, action: Action) -> Action:
        """With the number that its replica has over all lanes, and steps counted from the first recorded."""
        replica = action.replica + self._place.lane * self._place.placement.num_replicas
        return action._replace(replica=replica, step=action.step + self._shift)

    def _event(self, action: Action, start: float, end: float) -> Event:
        times = ((moment + self._offset) * 1000 for moment in (start, end))
        return Event(self._place.rank, lane_name(action), self._named(action), *times)
