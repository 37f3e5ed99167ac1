"""torch.compile of the benchmark's tower on this CPU: one thread, forward and backward, ways in turn.

usage: tools/compile_tower.py [float32 | bfloat16 | float64] [ROUNDS] [WAY ...]

Ways: eager; whole (one graph); runs (what a stage runs in one go: the bottom tower, then the rest); hidden (each hidden layer
by itself); interaction (that block alone); tuned (whole, with max_autotune and C++ products).
Said of each: seconds of its first step (compilation), the median step, the largest difference to eager in loss and gradients
(relative), when gradients are there (as a share of the backward), and what other batch sizes cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from recpipe.bench.recpipe_side import DENSE_LAYERS, OVER_LAYERS
from recpipe.model import StepContext, build_model
from recpipe.model.config import DlrmConfig
from recpipe.model.interaction import DotInteraction
from recpipe.model.layers import HiddenBlock
from recpipe.runtime import stage as stage_module
from recpipe.runtime.stage import Activation, Stage
from recpipe.specs import Feature, Schema

ROWS, OTHER_ROWS, DIM, FEATURES = 2048, (1111, 2048, 777), 64, 26
CONTEXT = StepContext()
WAYS = ("eager", "whole", "runs", "hidden", "interaction")
TUNED = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
Run = Callable[..., dict[str, torch.Tensor]]


class Way:
    """A tower of its own, and one way to run it: `runs` compiles what Stage runs in one go (bottom, and the rest)."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        weights = torch.float64 if dtype == "float64" else torch.float32
        over = list(OVER_LAYERS)
        config = DlrmConfig(
            "dlrm", embedding_dim=DIM, dense_arch_layer_sizes=[*DENSE_LAYERS, DIM], over_arch_layer_sizes=over
        )
        schema = Schema(13, tuple(Feature(f"cat_{k}", 100) for k in range(FEATURES)))
        self.model = build_model(config, schema, dtype=weights)
        self.stage = Stage(self.model, range(len(self.model.blocks)), torch.bfloat16 if dtype == "bfloat16" else None)
        self.run: Run = stage_module.run_blocks
        if name in ("whole", "runs", "tuned"):
            self.run = torch.compile(self.run, options=TUNED if name == "tuned" else None)
        for block in self.model.blocks:
            if isinstance(block, {"hidden": HiddenBlock, "interaction": DotInteraction}.get(name, ())):
                block.compile(dynamic=False)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.there: list[tuple[str, float]] = []
        for key, parameter in self.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, key=key: self._note(key))

    def _note(self, key: str) -> None:
        self.there.append((key, time.perf_counter()))

    def step(
        self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, labels_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and the gradient of the rows; `begun` and `ended` are those of the backward."""
        stage_module.run_blocks = self.run
        self.there.clear()
        kept = self._forward(dense_BD, rows_BFD.detach(), labels_B)
        grads: list[torch.Tensor] = []
        self.begun = time.perf_counter()
        self.stage.backward(kept, None, lambda grad: (self._note("rows_BFD"), grads.append(grad)))
        self.ended = time.perf_counter()
        return kept.output.detach(), grads[0]

    def _forward(self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor, labels_B: torch.Tensor) -> Activation:
        if self.name not in ("whole", "tuned"):
            return self.stage.forward_first(dense_BD, lambda: rows_BFD, labels_B, CONTEXT, ROWS)
        rows_BFD.requires_grad_()
        named = {"dense_BD": dense_BD, "labels_B": labels_B, "rows_BFD": rows_BFD.to(self.stage._input_dtype)}
        return self.stage.forward(rows_BFD, named, CONTEXT, ROWS)

    def timed(self, batch: tuple[torch.Tensor, ...]) -> float:
        torch._foreach_zero_([p.grad for p in self.model.parameters()])
        start = time.perf_counter()
        self.step(*batch)
        return time.perf_counter() - start

    def arrivals(self) -> str:
        """Share of the backward at which the first and the last weight's gradient are there, and that of the rows."""
        share = [(key, (when - self.begun) / (self.ended - self.begun)) for key, when in self.there]
        weights = [at for key, at in share if key != "rows_BFD"]
        rows = next(at for key, at in share if key == "rows_BFD")
        done = " ".join(f"{at:.2f}" for at in weights[1::2])
        return f"rows at {rows:.2f}, weights at {done}"


def batch(num_rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_rows)
    dense_BD = torch.rand(num_rows, 13, generator=generator, dtype=dtype)
    rows_BFD = torch.rand(num_rows, FEATURES, DIM, generator=generator, dtype=dtype) - 0.5
    return dense_BD, rows_BFD, torch.randint(2, (num_rows,), generator=generator).to(dtype)


def difference(one: Way, other: Way, rows: tuple[torch.Tensor, ...]) -> float:
    """Largest difference of loss, rows' and weights' gradients, relative to the largest value of each."""
    found = []
    for way in (one, other):
        way.timed(rows)
        torch._foreach_zero_([p.grad for p in way.model.parameters()])
        found.append([*way.step(*rows), *(p.grad for p in way.model.parameters())])
    pairs = zip(*found, strict=True)
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


def report(ways: list[Way], first: list[float], seconds: list[list[float]], full: tuple[torch.Tensor, ...]) -> None:
    columns = list(zip(*seconds, strict=True))
    for way, start, column in zip(ways, first, columns, strict=True):
        against = median(a / b for a, b in zip(columns[0], column, strict=True))
        print(
            f"{way.name:11} first {start:5.2f} s, step {1e3 * median(column):5.1f} ms ({1e3 * min(column):5.1f} at best)",
            end="",
        )
        print(
            f", eager/this {against:.3f}, differs by {difference(ways[0], way, full):.1e}; {way.arrivals()}", flush=True
        )
    for way in ways:
        others = " ".join(f"{way.timed(batch(rows, full[0].dtype)):.2f}" for rows in OTHER_ROWS)
        after = 1e3 * median(way.timed(full) for _ in range(5))
        print(f"{way.name:11} {OTHER_ROWS} rows: {others} s; {ROWS} rows after that: {after:.1f} ms")


def main() -> None:
    dtype = sys.argv[1] if len(sys.argv) > 1 else "float32"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    torch.set_num_threads(1)
    ways = [Way(name, dtype) for name in (sys.argv[3:] or WAYS)]
    full = batch(ROWS, torch.float64 if dtype == "float64" else torch.float32)
    first = [way.timed(full) for way in ways]
    warm_and_timed = [[way.timed(full) for way in ways] for _ in range(2 + rounds)]
    report(ways, first, warm_and_timed[2:], full)


if __name__ == "__main__":
    main()
