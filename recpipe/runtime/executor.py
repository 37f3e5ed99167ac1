"""Executes a program on this rank: one handler an op, in issue order, on one thread.

Communication is started and waited for only where its result is read. What an action reads was issued earlier on the same
rank (`recpipe.schedule.deps` says what that is), so a program that was checked for a synchronous host cannot hang here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch

from recpipe.batch import Batch
from recpipe.comm import Pending
from recpipe.comm.channels import ChannelsLike
from recpipe.embedding.tables import ShardedTables
from recpipe.errors import RecpipeError, ScheduleError
from recpipe.model import StepContext
from recpipe.runtime.backward import Ready
from recpipe.runtime.order import StepOrder
from recpipe.runtime.place import Place
from recpipe.runtime.recorder import Recorder
from recpipe.runtime.running import Key, RunningStep, Span, StepResult
from recpipe.runtime.stage import Activation, Stage
from recpipe.runtime.windows import Windows
from recpipe.schedule.ir import Action, Op


class Updates(Protocol):
    """The dense side of an update, given by the trainer; steps are global."""

    def check_loss(self, value: float, place: str) -> None: ...

    def backward_done(self, stage: int) -> None: ...

    def reduce(self, stage: int) -> None: ...

    def settle(self, step: int) -> bool: ...

    def optimize(self, stage: int, step: int, update: bool) -> None: ...

    def table_lr(self, step: int) -> float: ...


class Executor:
    """Runs steps. Where `recorder` is set, it is told when each action ran.

    Args:
        order: what this rank issues.
        place: where it stands.
        tables: the sharded tables, all ranks together.
        stages: the stages of this rank.
        channels: messages between stages; None where every stage of a pipeline lies on one rank.
        updates: None for scoring: no gradients, no dropout.
        seed: of dropout.
        dtype: of activations between stages; None: that of the tables.
    """

    def __init__(
        self,
        order: StepOrder,
        place: Place,
        tables: ShardedTables,
        stages: Mapping[int, Stage],
        channels: ChannelsLike | None,
        updates: Updates | None,
        seed: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.order, self.place = order, place
        self._stages, self._channels, self._updates, self._seed = stages, channels, updates, seed
        self._dtype = dtype or tables.dtype
        self._tables, self._windows = tables, Windows(tables, order)
        self._base = 0
        self._inside, self._issued = order.inside(0), set[Action]()
        self.recorder: Recorder | None = None
        self._of_other_steps: dict[Op, Callable[[int], None]] = {
            Op.ED: self._windows.route,
            Op.DG: lambda _: tables.send_deferred(),
            Op.DU: lambda _: tables.settle(),
        }
        self._handlers: dict[Op, Callable[[RunningStep, Action], None]] = {
            Op.PL: lambda step, _: step.tables.gather_early(),
            Op.PO: lambda step, _: step.tables.send_early(),
            Op.EL: self._lookup,
            Op.EO: self._send_rows,
            Op.F: self._forward,
            Op.B: self._backward,
            Op.I: self._backward_input,
            Op.W: self._backward_weights,
            Op.SA: self._send_activation,
            Op.RA: self._receive_activation,
            Op.SG: self._send_gradient,
            Op.RG: self._receive_gradient,
            Op.EG: lambda step, action: step.tables.send_gradients(step.slots[action.microbatch]),
            Op.EU: self._update,
            Op.R: self._reduce,
            Op.OPT: self._optimize,
        }

    def run(self, batches: Iterator[Batch], base: int = 0) -> Iterator[StepResult]:
        """Runs one step a batch; the same number of batches on every rank.

        Args:
            batches: this rank's rows; batches without rows where it is no consumer. Read ahead of the step at hand.
            base: steps done before.
        """
        self._base, number = base, 0
        self._issued.clear()
        self._tables.settle()
        self._windows.begin(batches)
        while number == 0 or number in self._windows.steps:
            self._windows.begin_step(number)
            self._inside = self.order.inside(number)
            if self.recorder is not None:
                self.recorder.begin_step(number, base)
            for action in self.order.actions(number):
                with self._named(action):
                    self._timed(action)
            if number in self._windows.steps:
                yield self._windows.steps.pop(number).close()
            number += 1

    @contextmanager
    def _named(self, action: Action) -> Iterator[None]:
        """An error inside says which action it struck."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, RecpipeError):
                text = f"{action._replace(step=0)} of step {self._base + action.step}"
                # add_note is not there in Python 3.10.
                error.__notes__ = [*getattr(error, "__notes__", ()), f"while it ran {text}"]
            raise

    def _timed(self, action: Action) -> None:
        recorder = self.recorder
        if recorder is None or not recorder.is_on:
            self.execute(action)
            return
        recorder.enter(action)
        start = time.perf_counter()
        self.execute(action)
        recorder.ran(action, start, time.perf_counter())

    def execute(self, action: Action) -> None:
        """Runs one action, if it has not been; actions of steps that there are no rows for are left out.

        Raises:
            ScheduleError: nothing here does what `action` asks for.
        """
        if action in self._issued:
            self._issued.remove(action)
            return
        if action.op in self._of_other_steps:
            self._of_other_steps[action.op](action.step)
            return
        handler = self._handlers.get(action.op)
        if handler is None:
            raise ScheduleError(f"rank {self.place.rank}: no handler for {action}")
        step = self._windows.steps.get(action.step)
        if step is not None:
            handler(step, action)

    def _lookup(self, step: RunningStep, action: Action) -> None:
        step.tables.lookup(0.0 if self._updates is None else self._updates.table_lr(self._base + step.number))

    def _send_rows(self, step: RunningStep, action: Action) -> None:
        slot = step.slots[action.microbatch]
        step.tables.send_rows(slot)
        if slot == 0:
            self._windows.tell_early(step)

    def _span(self, step: RunningStep, action: Action) -> Span:
        return step.span(self.place.rank_of(action.replica, 0), action.microbatch)

    def _forward(self, step: RunningStep, action: Action) -> None:
        stage, key, span = self._stages[action.stage], _key(action), self._span(step, action)
        with torch.set_grad_enabled(self._updates is not None):
            kept = self._run_stage(step, stage, action, span)
        if stage.is_last:
            step.loss += self._checked(step, span, kept.output) if span.num_rows else 0.0
            step.scored.append((span, kept.logits_B, kept.labels_B))
        elif self._is_here(action, 1):
            step.messages[_at(key, 1)] = kept.message
        else:
            step.outgoing[key] = kept.message
        if self._updates is not None:
            step.activations[key] = kept

    def _checked(self, step: RunningStep, span: Span, loss: torch.Tensor) -> float:
        value = float(loss.detach())
        if self._updates is not None:
            rows = f"rows {span.first_row} to {span.first_row + span.num_rows - 1} of the epoch"
            self._updates.check_loss(value, f"step {self._base + step.number}, {rows}")
        return value

    def _run_stage(self, step: RunningStep, stage: Stage, action: Action, span: Span) -> Activation:
        context = StepContext(
            seed=self._seed, step=self._base + step.number, first_row=span.first_row, training=self._updates is not None
        )
        if not stage.is_first:
            leaf, named = stage.input(_received(step.messages.pop(_key(action))), span.num_rows)
            return stage.forward(leaf, named, context, step.global_rows) if span.num_rows else _nothing(leaf)
        piece, rows = step.pieces[action.microbatch], partial(self._rows, step, action)
        if not span.num_rows:
            return _nothing(rows())
        # Rows are waited for inside: blocks that read none of them (a bottom tower) run while they are on their way.
        return stage.forward_first(piece.dense_BD, rows, piece.labels_B, context, step.global_rows)

    def _rows(self, step: RunningStep, action: Action) -> torch.Tensor:
        rows_BFD = step.tables.pool(step.slots[action.microbatch])
        self._issue_inside(action)
        return rows_BFD

    def _backward(self, step: RunningStep, action: Action) -> None:
        self._differentiate(step, action, step.activations.pop(_key(action)), self._stages[action.stage].backward)
        self._done(action)

    def _backward_input(self, step: RunningStep, action: Action) -> None:
        self._differentiate(step, action, step.activations[_key(action)], self._stages[action.stage].backward_input)

    def _differentiate(
        self,
        step: RunningStep,
        action: Action,
        kept: Activation,
        backward: Callable[[Activation, torch.Tensor | None, Ready], None],
    ) -> None:
        """Gradient of a stage's input, passed on as soon as it is there; a microbatch without rows has none."""
        grad_M, ready = self._incoming(step, action), partial(self._pass_on, step, action)
        if kept.output.numel():
            backward(kept, grad_M, ready)
        else:
            ready(torch.zeros_like(kept.leaf))

    def _backward_weights(self, step: RunningStep, action: Action) -> None:
        kept = step.activations.pop(_key(action))
        if kept.halves is not None:
            self._stages[action.stage].backward_weights(kept)
        self._done(action)

    def _incoming(self, step: RunningStep, action: Action) -> torch.Tensor | None:
        """Gradient of a stage's outgoing message; None at the last stage."""
        if self._stages[action.stage].is_last:
            return None
        return _received(step.gradients.pop(_key(action)))

    def _pass_on(self, step: RunningStep, action: Action, grad: torch.Tensor) -> None:
        """Gives the gradient of a stage's input to whom it belongs: the tables, or the stage before."""
        if action.stage == 0:
            if grad.shape[0]:
                step.tables.add_gradient(step.slots[action.microbatch], grad)
            self._issue_inside(action)
        elif self._is_here(action, -1):
            step.gradients[_at(_key(action), -1)] = grad
        else:
            step.returning[_key(action)] = grad

    def _issue_inside(self, action: Action) -> None:
        """Issues what need not wait for the end of `action`, see `StepOrder.inside`; its own turn then finds it done."""
        recorder = self.recorder if self.recorder is not None and self.recorder.is_on else None
        for follower in self._inside.get((action.op, action.replica, action.stage, action.microbatch), ()):
            early = follower._replace(step=action.step + follower.step)
            if recorder is not None:
                recorder.enter(early, action)
            with self._named(early):
                self.execute(early)
            self._issued.add(early)
        if recorder is not None:
            recorder.enter(action)

    def _done(self, action: Action) -> None:
        assert self._updates is not None
        self._updates.backward_done(action.stage)

    def _is_here(self, action: Action, ahead: int) -> bool:
        return self.place.rank_of(action.replica, action.stage + ahead) == self.place.rank

    def _send_activation(self, step: RunningStep, action: Action) -> None:
        self._send(step, "activation", action, 1, step.outgoing.pop(_key(action)))

    def _send_gradient(self, step: RunningStep, action: Action) -> None:
        self._send(step, "gradient", action, -1, step.returning.pop(_key(action)))

    def _send(self, step: RunningStep, kind: str, action: Action, ahead: int, tensor: torch.Tensor) -> None:
        """A message without elements is not sent: both ends know how many rows there are."""
        if tensor.numel():
            assert self._channels is not None
            target = self.place.rank_of(action.replica, action.stage + ahead)
            step.sent.append(self._channels.send(kind, target, tensor))

    def _receive_activation(self, step: RunningStep, action: Action) -> None:
        size = self._stages[action.stage].entry.numel(self._span(step, action).num_rows)
        step.messages[_key(action)] = self._receive("activation", action, -1, size)

    def _receive_gradient(self, step: RunningStep, action: Action) -> None:
        size = self._stages[action.stage].exit.grad_numel(self._span(step, action).num_rows)
        step.gradients[_key(action)] = self._receive("gradient", action, 1, size)

    def _receive(self, kind: str, action: Action, ahead: int, size: int) -> Pending | torch.Tensor:
        out = torch.empty(size, dtype=self._dtype)
        if not size:
            return out
        assert self._channels is not None
        return self._channels.receive(kind, self.place.rank_of(action.replica, action.stage + ahead), out)

    def _reduce(self, step: RunningStep, action: Action) -> None:
        assert self._updates is not None
        self._updates.reduce(action.stage)

    def _optimize(self, step: RunningStep, action: Action) -> None:
        update = self._may_update(step)
        assert self._updates is not None
        self._updates.optimize(action.stage, self._base + step.number, update)

    def _update(self, step: RunningStep, action: Action) -> None:
        if self._may_update(step):
            step.tables.update(self._base + step.number + 1)

    def _may_update(self, step: RunningStep) -> bool:
        """Asked before the first update of a step on this rank, when all its own gradients are on their way."""
        assert self._updates is not None
        if step.sound is None:
            step.sound = self._updates.settle(self._base + step.number)
        return step.sound


def _nothing(leaf: torch.Tensor) -> Activation:
    """Of a microbatch without rows."""
    empty = leaf.detach().flatten()[:0]
    return Activation(leaf, empty, empty, empty, empty)


def _key(action: Action) -> Key:
    return action.replica, action.stage, action.microbatch


def _at(key: Key, ahead: int) -> Key:
    return key[0], key[1] + ahead, key[2]


def _received(message: Pending | torch.Tensor) -> torch.Tensor:
    return message.wait() if isinstance(message, Pending) else message
