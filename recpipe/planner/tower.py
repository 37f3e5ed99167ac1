"""What the dense tower costs: the operations of every block counted on the meta device, or its time measured here.

Counting runs each block forward and backward on tensors without memory, at two batch sizes, so that every operation has a
part a row and a fixed part (its weights). A device then takes the longer of arithmetic and memory traffic for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from recpipe.model import Model, StepContext
from recpipe.model.block import Block, run_blocks
from recpipe.planner.topology import Nodes

_ROWS = (64, 128)
_MEASURE_ROWS = (256, 1024)
Found = TypeVar("Found")
_NO_WORK = (
    "view",
    "t",
    "detach",
    "transpose",
    "permute",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "split",
    "alias",
    "as_strided",
    "empty_like",
    "empty",
    "_unsafe_view",
    "reshape",
    "unbind",
    "new_empty",
    "split_with_sizes",
)


@dataclass(frozen=True)
class Kernel:
    """One operation: `flops` and `moved` bytes a row, and bytes that do not depend on the rows."""

    flops: float
    moved: float
    fixed: float

    def seconds(self, rows: float, node: Nodes) -> float:
        """On one rank of `node`."""
        return max(self.flops * rows / node.flops, (self.moved * rows + self.fixed) / node.bandwidth) + node.launch


@dataclass(frozen=True)
class Line:
    """A measured time: ``fixed + row * rows`` seconds."""

    fixed: float
    row: float


@dataclass(frozen=True)
class BlockCost:
    """One block of the tower.

    Args:
        name: the block's.
        forward, backward: its operations.
        saved: bytes a row that forward keeps for backward.
        parameters: its weights.
        measured: forward and backward as measured on this machine; None where they are counted.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: float
    parameters: int
    measured: tuple[Line, Line] | None = None

    def times(self, rows: float, node: Nodes) -> tuple[float, float, float]:
        """Seconds of F, I and W for a microbatch of `rows` rows: half of backward's matrix products are weight gradients."""
        if self.measured:
            ahead, back = (line.fixed + line.row * rows for line in self.measured)
            share = self._weight_share(node)
            return ahead, back * (1 - share), back * share
        ahead = sum(kernel.seconds(rows, node) for kernel in self.forward)
        products = sum(kernel.seconds(rows, node) for kernel in self.backward if kernel.flops)
        other = sum(kernel.seconds(rows, node) for kernel in self.backward if not kernel.flops)
        return ahead, other + products / 2, products / 2

    def flops(self) -> float:
        """Of forward and backward, a row."""
        return sum(kernel.flops for kernel in (*self.forward, *self.backward))

    def _weight_share(self, node: Nodes) -> float:
        """Part of backward that is weight gradients, by counted operations."""
        products = sum(kernel.seconds(1024, node) for kernel in self.backward if kernel.flops)
        total = sum(kernel.seconds(1024, node) for kernel in self.backward)
        return products / 2 / total if total else 0.0


@dataclass(frozen=True)
class WholeTower:
    """All stages together, as a run was measured to take with so many of them.

    Args:
        lines: of F, B, I and W.
        optimizer: seconds of the dense optimizer of one stage.
    """

    lines: Mapping[str, Line]
    optimizer: float


@dataclass(frozen=True)
class Tower:
    """A dense tower.

    Args:
        blocks: in order.
        cut_elements: floats a row that cross the cut before each block, and after the last.
        num_dense: dense columns of a row of data.
        whole: by number of stages; where there are any, they say how long all blocks together take.
        weight: of each block, its part of `whole`.
        beside: number of blocks before the first that reads rows of tables.
    """

    blocks: tuple[BlockCost, ...]
    cut_elements: tuple[int, ...]
    num_dense: int = 13
    whole: Mapping[int, WholeTower] = field(default_factory=dict)
    weight: tuple[float, ...] = ()
    beside: int = 0

    def times(self, rows: float, node: Nodes, stages: int = 1, split: bool = False) -> np.ndarray:
        """Seconds of F, I and W of each block for a microbatch of `rows` rows: blocks x 3.

        Args:
            stages: that the tower is cut in.
            split: whether I and W run apart, which takes longer than one backward.
        """
        own = np.array([block.times(rows, node) for block in self.blocks])
        if not self.whole:
            return own
        own *= (np.array(self.weight) / own.sum(axis=1))[:, None]
        lines, totals = nearest(self.whole, stages).lines, own.sum(axis=0)
        if not split:
            totals[1:] = totals[1:].sum()
        taken = [lines[op] for op in (("F", "I", "W") if split else ("F", "B", "B"))]
        return own / totals * np.array([line.fixed + line.row * rows for line in taken])


def nearest(known: Mapping[int, Found], number: int) -> Found:
    """The entry of the largest number that is not above `number`, else of the smallest."""
    return known[max((one for one in known if one <= number), default=min(known))]


def count_tower(model: Model) -> Tower:
    """Costs of a model whose blocks may be on the meta device; nothing is computed."""
    saved = _saved_bytes(model)
    blocks = [_count_block(block, shapes, kept) for (block, shapes), kept in zip(_inputs(model), saved, strict=True)]
    cuts = tuple(spec.row_numel for spec in model.boundaries)
    return Tower(tuple(blocks), cuts, model.num_dense, beside=model.num_beside_rows)


def measure_tower(model: Model, tower: Tower, repeats: int = 5) -> Tower:
    """`tower` with each block's times measured on this machine, one thread setting for all.

    Args:
        model: materialised on the CPU.
    """
    lines = [_measure_block(block, shapes, repeats) for block, shapes in _inputs(model)]
    blocks = tuple(replace(block, measured=line) for block, line in zip(tower.blocks, lines, strict=True))
    return replace(tower, blocks=blocks)


def _inputs(model: Model) -> Iterator[tuple[Block, list[tuple[int, ...]]]]:
    """Each block with the shapes, for one row, of what it reads."""
    for block, boundary in zip(model.blocks, model.boundaries, strict=False):
        assert isinstance(block, Block)
        shape = dict(zip(boundary.names, boundary.shapes, strict=True))
        yield block, [shape[name] for name in block.inputs]


def _saved_bytes(model: Model) -> list[float]:
    """Bytes a row that each block is the first to keep for backward, when the blocks run one after the other."""
    rows, first = _ROWS[0], model.boundaries[0]
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    named = {
        name: torch.empty(rows, *shape, dtype=dtype, device="meta", requires_grad=True)
        for name, shape in zip(first.names, first.shapes, strict=True)
    }
    kept = {tensor.untyped_storage()._cdata: 0 for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage._cdata, storage.nbytes())
        return tensor

    totals = [0.0]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for block in model.blocks:
            named = run_blocks([block], named, StepContext(training=True))
            totals.append(sum(kept.values()) / rows)
    return [after - before for before, after in zip(totals, totals[1:], strict=False)]


def _count_block(block: Block, shapes: Sequence[tuple[int, ...]], saved: float) -> BlockCost:
    small, large = (_trace(block, shapes, rows) for rows in _ROWS)
    forward, backward = (
        tuple(_kernel(a, b) for a, b in zip(one, two, strict=True)) for one, two in zip(small, large, strict=True)
    )
    return BlockCost(block.name, forward, backward, saved, sum(p.numel() for p in block.parameters()))


def _kernel(small: tuple[float, float], large: tuple[float, float]) -> Kernel:
    rows = _ROWS[1] - _ROWS[0]
    moved = (large[1] - small[1]) / rows
    return Kernel((large[0] - small[0]) / rows, moved, max(0.0, small[1] - moved * _ROWS[0]))


_Ops = list[tuple[float, float]]
"""(flops, bytes) of each operation."""


def _trace(block: Block, shapes: Sequence[tuple[int, ...]], rows: int) -> tuple[_Ops, _Ops]:
    """The operations of forward and of backward, on the meta device."""
    dtype = next((p.dtype for p in block.parameters()), torch.float32)
    tensors = [torch.empty(rows, *s, dtype=dtype, device="meta", requires_grad=True) for s in shapes]
    forward: _Ops = []
    backward: _Ops = []
    with _Counter(forward):
        outputs = _outputs(block, tensors)
    with _Counter(backward):
        _backward(block, tensors, outputs)
    return forward, backward


def _outputs(block: Block, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    context = StepContext(training=True)
    block.begin(context, tensors[0].shape[0])
    made = block(*tensors, context=context)
    return [tensor for tensor in (made if isinstance(made, tuple) else (made,)) if tensor.requires_grad]


def _backward(block: Block, tensors: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    wanted = [*tensors, *block.parameters()]
    torch.autograd.grad(outputs, wanted, [torch.empty_like(tensor) for tensor in outputs], allow_unused=True)


class _Counter(TorchDispatchMode):
    """Records flops and bytes of every operation that does work."""

    def __init__(self, found: _Ops) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet.__name__.rstrip("_") not in _NO_WORK:
            counter = flop_registry.get(packet)
            flops = counter(*args, **(kwargs or {}), out_val=out) if counter else 0
            self._found.append((float(flops), float(_num_bytes(args) + _num_bytes(out))))
        return out


def _num_bytes(values: Any) -> int:
    """Bytes of all tensors in nested tuples and lists."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    return sum(_num_bytes(value) for value in values) if isinstance(values, tuple | list) else 0


def _measure_block(block: Block, shapes: Sequence[tuple[int, ...]], repeats: int) -> tuple[Line, Line]:
    small, large = (_time_block(block, shapes, rows, repeats) for rows in _MEASURE_ROWS)
    return _line(small[0], large[0]), _line(small[1], large[1])


def _line(small: float, large: float) -> Line:
    row = max(0.0, (large - small) / (_MEASURE_ROWS[1] - _MEASURE_ROWS[0]))
    return Line(max(0.0, large - row * _MEASURE_ROWS[1]), row)


def _time_block(block: Block, shapes: Sequence[tuple[int, ...]], rows: int, repeats: int) -> tuple[float, float]:
    """Least seconds of forward and of backward."""
    dtype = next((p.dtype for p in block.parameters()), torch.float32)
    tensors = [torch.randn(rows, *s, dtype=dtype, requires_grad=True) for s in shapes]
    best = [float("inf"), float("inf")]
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = _outputs(block, tensors)
        middle = time.perf_counter()
        _backward(block, tensors, outputs)
        end = time.perf_counter()
        best = [min(best[0], middle - start), min(best[1], end - middle)]
    return best[0], best[1]
