"""Steps whose ids are under way: reading, announcing and asking, each as far ahead of training as the program says.

`ED` of step t asks the owners for the rows of step t and announces step t + 1. What it waits for was announced one `ED`
ago, so routing costs no waiting, and a batch is read one step earlier than its ids are routed.
"""

from __future__ import annotations

from collections.abc import Iterator

from recpipe.batch import Batch
from recpipe.embedding.tables import ShardedTables
from recpipe.runtime.order import StepOrder
from recpipe.runtime.running import RunningStep
from recpipe.schedule.ir import Op


class Windows:
    """The steps under way, by number.

    Args:
        tables: what windows are opened over.
        order: says in which order rows and gradients travel.
    """

    def __init__(self, tables: ShardedTables, order: StepOrder) -> None:
        self.steps: dict[int, RunningStep] = {}
        self._tables = tables
        forward, backward = order.microbatches(Op.EO), order.microbatches(Op.EG)
        self._forward = forward
        self._slots = tuple(forward.index(m) for m in range(len(forward)))
        self._backward_position = tuple(backward.index(m) for m in forward)
        self._defers = any(action.op is Op.DG for action in order.later)
        self._early = any(action.op is Op.PL for action in order.later)
        self._routes = any(action.op is Op.ED for action in order.first)
        self._batches: Iterator[Batch] = iter(())

    def begin(self, batches: Iterator[Batch]) -> None:
        """Starts a run of steps; what an earlier run had read ahead and not trained is forgotten."""
        self.steps.clear()
        self._batches = batches
        self._announce(0)

    def begin_step(self, number: int) -> None:
        """A program without tables routes nothing by itself."""
        if not self._routes:
            self.route(number)

    def route(self, number: int) -> None:
        """Asks for the rows of step `number` and announces the next."""
        if number in self.steps:
            self._announce(number + 1)
            self.steps[number].tables.request()

    def tell_early(self, step: RunningStep) -> None:
        """Where rows travel early: finds those of the next step that `step` does not touch."""
        following = self.steps.get(step.number + 1)
        if self._early and following is not None:
            following.tables.tell_early(step.tables, self._defers)

    def _announce(self, number: int) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(())
            return
        pieces = batch.microbatches(len(self._slots))
        header = (batch.num_rows, batch.first_row)
        window = self._tables.open([pieces[m] for m in self._forward], self._backward_position, header)
        self.steps[number] = RunningStep(number, batch, pieces, self._slots, window)
