"""A plain, unsharded model of embedding tables: whole tensors, autograd, one loop a table. Written apart from the package."""

from __future__ import annotations

import torch

from recpipe.batch import Batch
from recpipe.specs import TableSpec


def table_rows(table: int, start: int, stop: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that differ everywhere and depend on (table, row) alone."""
    row = torch.arange(start, stop, dtype=dtype).unsqueeze(1)
    col = torch.arange(dim, dtype=dtype).unsqueeze(0)
    return torch.sin(row * 1.7 + col * 0.3 + table * 2.1) * 0.1


def make_batch(num_rows: int, specs: list[TableSpec], seed: int, kind: str, dtype: torch.dtype) -> Batch:
    """Random rows, skewed ids. kind: one_hot, multi_hot (lengths 0 to 3), weighted."""
    g = torch.Generator().manual_seed(seed)
    sizes = [spec.num_rows for spec in specs]
    if kind == "one_hot":
        lengths = torch.ones(len(sizes) * num_rows, dtype=torch.int32)
    else:
        lengths = torch.randint(0, 4, (len(sizes) * num_rows,), generator=g, dtype=torch.int32)
    per_feature = lengths.view(len(sizes), -1).sum(1).tolist()
    ids = [(torch.rand(n, generator=g) ** 2 * size).long() for n, size in zip(per_feature, sizes, strict=True)]
    total = sum(per_feature)
    return Batch(
        dense_BD=torch.rand(num_rows, 2, generator=g),
        ids_N=torch.cat(ids) if total else torch.empty(0, dtype=torch.int64),
        lengths_FB=lengths,
        labels_B=torch.zeros(num_rows),
        weights_N=torch.rand(total, generator=g).to(dtype) + 0.5 if kind == "weighted" else None,
        one_hot=kind == "one_hot",
    )


def pooled(tables: list[torch.Tensor], specs: list[TableSpec], batch: Batch) -> torch.Tensor:
    """B x F x D by a loop over bags."""
    rows = batch.num_rows
    lengths = batch.lengths_FB.view(len(specs), rows).tolist()
    out = torch.zeros(rows, len(specs), specs[0].dim, dtype=tables[0].dtype)
    position = 0
    pieces = []
    for f in range(len(specs)):
        for b in range(rows):
            n = lengths[f][b]
            picked = tables[f][batch.ids_N[position : position + n]]
            if batch.weights_N is not None:
                picked = picked * batch.weights_N[position : position + n].unsqueeze(1).to(picked.dtype)
            total = picked.sum(0)
            pieces.append(total / n if specs[f].pooling == "mean" and n else total)
            position += n
    if pieces:
        out = torch.stack(pieces).view(len(specs), rows, -1).transpose(0, 1)
    return out


class PlainOptimizer:
    """The row rules on whole tables, in their textbook form."""

    def __init__(self, name: str, tables: list[torch.Tensor], l2: float, eps: float) -> None:
        self.name, self.l2, self.eps, self.steps = name, l2, eps, 0
        self.sums = [torch.zeros(t.shape[0] if name == "rowwise_adagrad" else t.shape, dtype=t.dtype) for t in tables]
        self.means = [torch.zeros_like(t) for t in tables]

    def step(self, tables: list[torch.Tensor], touched: list[torch.Tensor], lr: float) -> None:
        self.steps += 1
        for i, table in enumerate(tables):
            for row in touched[i].tolist():
                grad = table.grad[row] + self.l2 * table.data[row]
                table.data[row] -= lr * self._direction(i, row, grad)

    def _direction(self, i: int, row: int, grad: torch.Tensor) -> torch.Tensor:
        if self.name == "sgd":
            return grad
        if self.name == "adam":
            self.means[i][row] = 0.9 * self.means[i][row] + 0.1 * grad
            self.sums[i][row] = 0.999 * self.sums[i][row] + 0.001 * grad**2
            scale = (self.sums[i][row] / (1 - 0.999**self.steps)).sqrt() + self.eps
            return self.means[i][row] / (1 - 0.9**self.steps) / scale
        self.sums[i][row] += (grad**2).mean() if self.name == "rowwise_adagrad" else grad**2
        return grad / (self.sums[i][row].sqrt() + self.eps)
