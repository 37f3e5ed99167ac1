"""The pooled exchange: TorchRec's `ShardedEmbeddingBagCollection`, driven phase by phase.

Every lookup travels as an id and every bag comes back pooled. Right where bags are long and rows rarely repeat; elsewhere
the window exchange sends less. One lookup and one fused update a step, whatever the number of microbatches.

What FBGEMM's fused kernels cannot do is refused when the exchange is made: float64, Adam on CPU, L2, a dim that is no
multiple of 4, empty shards, and row-wise Adagrad on column blocks (its state would be one a block: another trajectory).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from recpipe.batch import Batch
from recpipe.embedding.lanes import Lanes
from recpipe.embedding.layout import Shard, TableLayout
from recpipe.embedding.optimizers import RowOptimizer
from recpipe.embedding.pooled_bytes import PooledBytes
from recpipe.embedding.pooling import Bags
from recpipe.embedding.state import Entry, Piece
from recpipe.embedding.store import InitRows
from recpipe.embedding.torchrec_tables import make_sharded_bags
from recpipe.errors import ConfigError

_FUSED = ("sgd", "adagrad", "rowwise_adagrad")
_COLUMN_CUTS = ("column_wise", "table_column_wise", "grid")


class PooledExchange:
    """Tables held by TorchRec.

    Args:
        layouts: one a feature, in feature order.
        optimizer: sgd, adagrad or rowwise_adagrad, without L2.
        init_rows: (table index, row_start, row_stop) -> rows x dim.
        lanes: the ids lane tells headers; TorchRec's own collectives use `group`.
        dtype: float32.
        group: process group of TorchRec's collectives.

    Raises:
        ConfigError: see the module's text.
    """

    def __init__(
        self,
        layouts: Sequence[TableLayout],
        optimizer: RowOptimizer,
        init_rows: InitRows,
        lanes: Lanes,
        dtype: torch.dtype,
        group: dist.ProcessGroup | None,
    ) -> None:
        check_pooled(layouts, optimizer, dtype)
        assert group is not None, "the pooled exchange needs an initialised process group"
        self.layouts, self.optimizer, self.lanes = tuple(layouts), optimizer, lanes
        self.bags = make_sharded_bags(layouts, optimizer, group)
        self.bytes = PooledBytes(layouts, lanes.ids.rank, lanes.ids.world)
        self._weights = self._tensors(self.bags.state_dict(), "weight")
        for table, pieces in enumerate(self._weights):
            for shard, tensor in pieces:
                rows = init_rows(table, shard.row_start, shard.row_stop)
                tensor.copy_(rows[:, shard.col_start : shard.col_stop])

    def open(self, microbatches: Sequence[Batch], bags: Sequence[Bags], header: Sequence[int]) -> PooledStep:
        """Starts a step: tells headers and this rank's number of rows."""
        return PooledStep(self, microbatches, bags, header)

    def num_bytes(self) -> int:
        """Bytes of weights and optimizer state on this rank."""
        entries = self.entries().values()
        return sum(p.tensor.numel() * p.tensor.element_size() for entry in entries for p in entry.pieces)

    def set_lr(self, lr: float) -> None:
        """Learning rate of the next fused updates."""
        for group in self.bags.fused_optimizer.param_groups:
            group["lr"] = lr
        self.bags.fused_optimizer.step()

    def entries(self) -> dict[str, Entry]:
        """Checkpoint entries under the same names as those of the window exchange."""
        entries = {}
        for table, layout in enumerate(self.layouts):
            spec = layout.spec
            pieces = self._weights[table]
            entries[f"tables.{spec.name}.weight"] = _entry((spec.num_rows, spec.dim), pieces)
            if self.optimizer.name != "sgd":
                whole = self.optimizer.name == "adagrad"
                shape = (spec.num_rows, spec.dim) if whole else (spec.num_rows,)
                entries[f"tables.{spec.name}.sum"] = _entry(shape, self._sums(table))
        return entries

    def _sums(self, table: int) -> list[tuple[Shard, torch.Tensor]]:
        """FBGEMM calls Adagrad's sum of squares ``momentum1``; a rank without rows of the table has none."""
        name = self.layouts[table].spec.name
        state = self.bags.fused_optimizer.state_dict()["state"].get(f"embedding_bags.{name}.weight", {})
        found = [value for key, value in state.items() if key.endswith(".momentum1") or key.endswith(".sum")]
        return self._shards_of(table, found[0]) if found else []

    def _tensors(self, state: dict[str, Any], suffix: str) -> list[list[tuple[Shard, torch.Tensor]]]:
        names = [f"embedding_bags.{layout.spec.name}.{suffix}" for layout in self.layouts]
        return [self._shards_of(table, state[name]) for table, name in enumerate(names)]

    def _shards_of(self, table: int, sharded: Any) -> list[tuple[Shard, torch.Tensor]]:
        """This rank's rectangles of a ShardedTensor, matched to the layout by their first row and column."""
        mine = [s for s in self.layouts[table].shards if s.rank == self.lanes.ids.rank]
        out = []
        for local in sharded.local_shards():
            row, col = (*local.metadata.shard_offsets, 0)[:2]
            matching = [s for s in mine if s.row_start == row and s.col_start in (col, 0)]
            if matching and local.tensor.numel():
                out.append((matching[0], local.tensor.detach()))
        return out


def _entry(shape: tuple[int, ...], pieces: Sequence[tuple[Shard, torch.Tensor]]) -> Entry:
    cut = tuple(
        Piece((s.row_start, s.col_start)[: len(shape)], t.view(-1) if len(shape) == 1 else t, True) for s, t in pieces
    )
    return Entry(shape, torch.float32, cut)


def check_pooled(layouts: Sequence[TableLayout], optimizer: RowOptimizer, dtype: torch.dtype) -> None:
    """Refuses what FBGEMM's fused kernels cannot do exactly; see the module's text."""
    other = "use exchange=window"
    if dtype != torch.float32:
        raise ConfigError(f"exchange=pooled: FBGEMM's tables are float32, dtype is {dtype}; {other}")
    if optimizer.name not in _FUSED:
        raise ConfigError(f"exchange=pooled: FBGEMM has no {optimizer.name} for tables on CPU; {other}")
    if optimizer.l2:
        raise ConfigError(f"exchange=pooled: optimizer.table.l2={optimizer.l2} is not in FBGEMM's kernels; {other}")
    for layout in layouts:
        dim = layout.spec.dim
        if dim % 4:
            raise ConfigError(
                f"exchange=pooled: table {layout.spec.name} has rows of {dim} floats, FBGEMM's kernels take multiples "
                f"of 4; choose an embedding_dim that makes rows of {dim + -dim % 4}, or {other}"
            )
        if any(shard.num_rows == 0 for shard in layout.shards):
            raise ConfigError(
                f"exchange=pooled: table {layout.spec.name} has {layout.spec.num_rows} rows, too few for every rank of "
                f"{layout.sharding} to hold one, and FBGEMM's update fails now and then on an empty shard; "
                f"use tables.per_table.{layout.spec.name}=table_wise or {other[4:]}"
            )
        if layout.sharding in _COLUMN_CUTS and optimizer.name == "rowwise_adagrad" and len(layout.shards) > 1:
            raise ConfigError(
                f"exchange=pooled: table {layout.spec.name} is cut by columns, and FBGEMM would keep one row-wise Adagrad "
                f"state a block; use optimizer.table.name=adagrad, another sharding, or {other[4:]}"
            )


class PooledStep:
    """One step of the pooled exchange; the verbs of `Window`, as far as there is something to do."""

    def __init__(
        self, exchange: PooledExchange, microbatches: Sequence[Batch], bags: Sequence[Bags], header: Sequence[int]
    ) -> None:
        self._exchange = exchange
        self._microbatches, self._bags = microbatches, bags
        self._rows = [batch.num_rows for batch in microbatches]
        lane = exchange.lanes.ids
        message = torch.tensor([*header, sum(self._rows)] * lane.world)
        sizes = [len(header) + 1] * lane.world
        self._announcement = lane.all_to_all(message, sizes, sizes)
        self.headers = torch.empty(0)

    def request(self) -> None:
        """Waits for headers; sends ids, padded to the largest rank's rows (row-wise kinds need equal batches on gloo)."""
        received = self._announcement.wait().view(self._exchange.lanes.ids.world, -1)
        self.headers, rows_W = received[:, :-1], received[:, -1]
        self._padded = max(int(rows_W.max()), 1)
        features = [layout.spec.feature for layout in self._exchange.layouts]
        jagged = self._jagged(features)
        self._context = self._exchange.bags.create_context()
        self._input = self._exchange.bags.input_dist(self._context, jagged)
        self._exchange.bytes.count(self._exchange.lanes.ids, jagged.lengths(), jagged.values(), self._padded)

    def _jagged(self, features: list[str]) -> Any:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        lengths = torch.zeros(len(features), self._padded, dtype=torch.int32)
        ids: list[list[torch.Tensor]] = [[] for _ in features]
        weights: list[list[torch.Tensor]] = [[] for _ in features]
        start = 0
        for batch, bags in zip(self._microbatches, self._bags, strict=True):
            if not batch.num_rows:
                continue
            per_bag = batch.lengths_FB.view(len(features), -1)
            lengths[:, start : start + batch.num_rows] = per_bag
            factor_N = torch.ones(batch.ids_N.numel()) if bags.weight_N is None else bags.weight_N.float()
            sizes = per_bag.sum(1).tolist()
            for f, (run, factors) in enumerate(zip(batch.ids_N.split(sizes), factor_N.split(sizes), strict=True)):
                ids[f].append(run)
                weights[f].append(factors)
            start += batch.num_rows
        flat = [run for runs in ids for run in runs]
        values = torch.cat(flat) if flat else torch.empty(0, dtype=torch.int64)
        factors = torch.cat([run for runs in weights for run in runs]) if flat else torch.empty(0)
        return KeyedJaggedTensor(keys=features, values=values, weights=factors, lengths=lengths.flatten())

    def lookup(self, lr: float) -> None:
        """Pools at the owners and brings the bags of the whole step.

        Args:
            lr: of the coming update: FBGEMM captures the rate in its forward.
        """
        self._exchange.set_lr(lr)
        inputs = self._input.wait().wait()
        output = self._exchange.bags.compute_and_output_dist(self._context, inputs).wait()
        self._pooled_BX = output.values()
        self._order = [list(output.keys()).index(layout.spec.feature) for layout in self._exchange.layouts]
        dim = self._exchange.layouts[0].spec.dim
        self._gradient_BFD = self._pooled_BX.new_zeros(self._pooled_BX.shape[0], len(self._order), dim)

    def pool(self, microbatch: int) -> torch.Tensor:
        """Rows of one microbatch, B x F x dim."""
        rows = self._pooled_BX.detach().view(self._gradient_BFD.shape)[self._span(microbatch)]
        return rows[:, self._order].contiguous()

    def add_gradient(self, microbatch: int, grad_BFD: torch.Tensor) -> None:
        """Keeps the gradient of one microbatch's bags."""
        self._gradient_BFD[self._span(microbatch), self._order] = grad_BFD

    def update(self) -> None:
        """Sends gradients of bags to owners; FBGEMM updates every touched row once."""
        self._pooled_BX.backward(self._gradient_BFD.view_as(self._pooled_BX))

    def _span(self, microbatch: int) -> slice:
        start = sum(self._rows[:microbatch])
        return slice(start, start + self._rows[microbatch])
