"""A model for single-process serving: the tower as `torch.export` makes it, and the rows of all tables in one mapped file.

Scoring needs this file and `checkpoint_file` only: no process group, no sharding, no blocks.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from recpipe.batch import Batch
from recpipe.errors import CheckpointError
from recpipe.model import Model, StepContext, build_model
from recpipe.train.checkpoint_convert import Stored, blocks
from recpipe.train.checkpoint_file import TensorFile, write_file
from recpipe.train.checkpoint_manifest import read_text
from recpipe.train.config_text import from_yaml
from recpipe.train.state import read_schema

TOWER, ROWS, DESCRIPTION = "tower.pt2", "rows.safetensors", "model.json"


class _Tower(nn.Module):
    """The blocks with what scoring fixes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense_BD: torch.Tensor, rows_BFD: torch.Tensor) -> torch.Tensor:
        return self.model(dense_BD, rows_BFD, StepContext(training=False))


def export_model(folder: Path, out: Path) -> None:
    """Writes a checkpoint's model as a directory to serve from.

    Args:
        folder: the checkpoint.
        out: must not exist.

    Raises:
        CheckpointError: the checkpoint is damaged, or `out` exists.
    """
    if out.exists():
        raise CheckpointError(f"{out}: is there already; give another name")
    stored, schema = Stored(folder), read_schema(folder)
    cfg = from_yaml(read_text(folder, "config.yaml"), folder / "config.yaml")
    model = build_model(cfg.model, schema, seed=cfg.seed, dtype=getattr(torch, cfg.dtype))
    model.load_state_dict({name: stored.whole(f"model.{name}") for name in model.state_dict()})
    out.mkdir(parents=True)
    torch.export.save(_exported(model, len(schema.features)), out / TOWER)
    slots = [stored.slot(f"tables.{table.name}.weight") for table in model.tables]
    write_file(out / ROWS, slots, lambda slot: blocks(slot, stored.rows), {})
    tables = [asdict(table) for table in model.tables]
    (out / DESCRIPTION).write_text(
        json.dumps({"dtype": cfg.dtype, "schema": asdict(schema), "tables": tables}, indent=1)
    )


def _exported(model: Model, num_features: int) -> Any:
    dtype = next(model.parameters()).dtype
    example = (torch.zeros(2, model.num_dense, dtype=dtype), torch.zeros(2, num_features, model.row_dim, dtype=dtype))
    rows = torch.export.Dim("rows")
    shapes = {"dense_BD": {0: rows}, "rows_BFD": {0: rows}}
    return torch.export.export(_Tower(model).eval(), example, dynamic_shapes=shapes)


class ServedModel:
    """Scores rows in one process.

    Args:
        folder: what `export_model` wrote.
    """

    def __init__(self, folder: Path) -> None:
        self._described = json.loads((folder / DESCRIPTION).read_text())
        self._tower = torch.export.load(folder / TOWER).module()
        file = TensorFile(folder / ROWS)
        self._rows = [file.read(f"tables.{table['name']}.weight") for table in self._described["tables"]]
        self._dtype = getattr(torch, self._described["dtype"])

    @torch.no_grad()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits of the B rows of a batch, ids as in training."""
        lengths_FB = batch.lengths_FB.view(len(self._rows), -1)
        counts = lengths_FB.sum(1).tolist()
        ids = batch.ids_N.split(counts)
        weights = [None] * len(ids) if batch.weights_N is None else batch.weights_N.split(counts)
        pooled = [self._pool(f, ids[f], lengths_FB[f].long(), weights[f]) for f in range(len(ids))]
        logits_B: torch.Tensor = self._tower(batch.dense_BD.to(self._dtype), torch.stack(pooled, dim=1))
        return logits_B

    def _pool(
        self, feature: int, ids: torch.Tensor, lengths_B: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        factors = None if weights is None else weights.to(self._dtype)
        if self._described["tables"][feature]["pooling"] == "mean":
            share = (1.0 / lengths_B.clamp(min=1).to(self._dtype)).repeat_interleave(lengths_B)
            factors = share if factors is None else factors * share
        offsets = lengths_B.cumsum(0) - lengths_B
        return F.embedding_bag(ids, self._rows[feature], offsets, mode="sum", per_sample_weights=factors)
