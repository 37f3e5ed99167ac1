"""Sums dense gradients over replicas in buckets, each started as soon as its last gradient is there.

Not DistributedDataParallel: that one averages (a mean of means), and a rank without rows or a schedule of several
microbatches would need its special modes. Here the loss is already divided by the global row count, so a plain sum is exact.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from recpipe.comm.lane import Lane, Pending

BUCKET_BYTES = 1 << 19
"""A bucket is closed when it holds at least this much: small enough for a tower of a few MB to leave piece by piece."""


class _Bucket:
    """Gradients that travel together: `flat` holds them, each parameter's `.grad` is a view of it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.views = [
            piece.view_as(p)
            for piece, p in zip(self.flat.split([p.numel() for p in parameters]), parameters, strict=True)
        ]
        self.missing = len(parameters)
        self.pending: Pending | None = None

    def reset(self) -> None:
        self.flat.zero_()
        self.missing = len(self.parameters)
        self.pending = None
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


class GradientReducer:
    """Reduces the gradients of `parameters` over the ranks of a lane.

    Use: `begin(num_backwards)` before the first backward of a step, `start()` after the last, `finish()` before the
    optimizer. Buckets are filled in reverse order of the parameters, about the order in which backward makes gradients,
    and always *started* in that order, so that every rank issues the same collectives.

    Args:
        parameters: dense parameters, in the same order on every rank.
        bucket_bytes: a bucket is closed when it holds at least this much.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lane: Lane,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._lane = lane
        self._buckets = [_Bucket(chunk) for chunk in _chunks(list(parameters)[::-1], bucket_bytes)]
        self._next = 0
        self._backwards_left = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def begin(self, num_backwards: int) -> None:
        """Zeroes gradients; buckets may leave during the last of `num_backwards` backward passes."""
        self._next = 0
        self._backwards_left = num_backwards
        for bucket in self._buckets:
            bucket.reset()

    def backward_done(self) -> None:
        """One backward pass of this step has ended."""
        self._backwards_left -= 1

    def start(self) -> None:
        """Starts what has not left: parameters without a gradient, ranks without rows, gradients made in halves."""
        while self._next < len(self._buckets):
            self._start(self._buckets[self._next])

    @property
    def gradients(self) -> list[torch.Tensor]:
        """All gradients, a flat tensor a bucket."""
        return [bucket.flat for bucket in self._buckets]

    def finish(self) -> None:
        """Starts what has not left and waits for all."""
        self.start()
        for bucket in self._buckets:
            if bucket.pending is not None:
                bucket.pending.wait()

    def _hook(self, bucket: _Bucket):  # type: ignore[no-untyped-def]
        # Autograd keeps hooks where Python cannot see a cycle: one with the group in it would outlive the run.
        this = weakref.ref(self)

        def gradient_ready(_: torch.Tensor) -> None:
            reducer = this()
            if reducer is not None:
                reducer._gradient_ready(bucket)

        return gradient_ready

    def _gradient_ready(self, bucket: _Bucket) -> None:
        if self._backwards_left != 1:
            return
        bucket.missing -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            self._start(self._buckets[self._next])

    def _start(self, bucket: _Bucket) -> None:
        self._next += 1
        bucket.pending = self._lane.all_reduce(bucket.flat)


def _chunks(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cuts the list where a bucket is full or the dtype changes."""
    chunks: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not chunks or size >= bucket_bytes or chunks[-1][0].dtype != parameter.dtype:
            chunks.append([])
            size = 0
        chunks[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return chunks
