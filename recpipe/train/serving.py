"""A model for single-process serving: its settings, the weights of its tower, and the rows of all tables in one mapped file.

`ServedModel` builds the tower from the settings, so it reads numbers and no program: no pickle, no `torch.export.load`, which
may unpickle. `tower.pt2` lies beside them for programs that trust the directory; it holds no pickled sample inputs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from recpipe.batch import Batch
from recpipe.data.check import Policy, check_batch
from recpipe.data.config import BAD_ID_POLICIES, DataConfig
from recpipe.data.frames import write_frame
from recpipe.data.prepare.given import encode_given, given_dataset
from recpipe.errors import CheckpointError, ConfigError
from recpipe.escapes import shown
from recpipe.model import Model, StepContext, build_model
from recpipe.specs import Schema, TableSpec
from recpipe.train.checkpoint_convert import Stored, blocks
from recpipe.train.checkpoint_file import Slot, TensorFile, checksum, write_file
from recpipe.train.checkpoint_index import listed_tensors
from recpipe.train.checkpoint_manifest import (
    find_damage,
    read_text,
    read_value,
    write_linked,
    write_manifest,
    write_text,
)
from recpipe.train.config_text import checked_group, from_yaml
from recpipe.train.encoded import encoding_files, encoding_in
from recpipe.train.state import read_schema, schema_from
from recpipe.untrusted import Value

logger = logging.getLogger(__name__)
_READING = ("bad_ids", "multi_hot_sizes", "multi_hot_distribution", "multi_hot_seed")
TOWER, DENSE, ROWS, DESCRIPTION = "tower.pt2", "dense.safetensors", "rows.safetensors", "model.json"
FORMAT = "recpipe-served/1"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
    description = {"format": FORMAT, "dtype": cfg.dtype, "schema": asdict(schema)}
    description["model"] = OmegaConf.to_container(cfg.model)
    usual: Any = OmegaConf.create(asdict(DataConfig()))
    data: Any = OmegaConf.to_container(OmegaConf.merge(usual, cfg.data))
    description["reading"] = {name: data[name] for name in _READING}
    more = encoding_files(folder)
    names = [name for name in stored.index if name.startswith("model.")]
    model = _filled(cfg.model, schema, cfg.dtype, {n[6:]: stored.slot(n) for n in names}, stored.whole, folder)
    tables = [stored.slot(f"tables.{table.name}.weight") for table in model.tables]
    out.mkdir(parents=True)
    _save_tower(model, len(schema.features), out / TOWER)
    files = {
        DENSE: write_file(out / DENSE, [stored.slot(n) for n in names], lambda slot: blocks(slot, stored.rows), {}),
        ROWS: write_file(out / ROWS, tables, lambda slot: blocks(slot, stored.rows), {}),
        TOWER: checksum(out / TOWER),
        DESCRIPTION: write_text(out / DESCRIPTION, json.dumps(description, indent=1)),
    }
    files |= {name: write_text(out / name, text) for name, text in more.texts.items()}
    files |= write_linked(out, more.links)
    write_manifest(out, files, {})


def _filled(
    settings: Any, schema: Schema, dtype: str, slots: dict[str, Slot], read: Callable[[str], torch.Tensor], folder: Path
) -> Model:
    """The model with its weights; nothing is allocated before all of them are known to be there.

    Args:
        slots: type and shape of the weights that there are, by their name in the model.
        read: gives the weights named ``model.NAME``.

    Raises:
        CheckpointError: other weights than the settings ask for.
    """
    try:
        model = build_model(settings, schema, dtype=DTYPES[dtype], device="meta")
    except (ConfigError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: its settings make no model: {_first_line(error)}") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: slot.shape for name, slot in slots.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            there = f"has the shape {found[name]}" if name in found else "is missing"
            raise CheckpointError(
                f"{folder}: does not fit its settings: {shown(name)} {there}, not {wanted.get(name, 'there')}"
            )
    model.materialise(range(len(model.blocks)), 0, "cpu")
    model.load_state_dict({name: read(f"model.{name}") for name in wanted})
    return model


def _save_tower(model: Model, num_features: int, path: Path) -> None:
    exported = _exported(model, num_features)
    # They would be stored as a pickle.
    exported._example_inputs = None
    torch.export.save(exported, path)


def _first_line(error: BaseException) -> str:
    return shown(next(iter(str(error).splitlines()), "") or type(error).__name__)


def _exported(model: Model, num_features: int) -> Any:
    dtype = next(model.parameters()).dtype
    example = (torch.zeros(2, model.num_dense, dtype=dtype), torch.zeros(2, num_features, model.row_dim, dtype=dtype))
    rows = torch.export.Dim("rows")
    shapes = {"dense_BD": {0: rows}, "rows_BFD": {0: rows}}
    return torch.export.export(_Tower(model).eval(), example, dynamic_shapes=shapes)


class ServedModel:
    """Scores rows in one process.

    Args:
        folder: what `export_model` wrote; it may come from a stranger.

    Raises:
        CheckpointError: a file is missing, damaged or of another model.
    """

    def __init__(self, folder: Path) -> None:
        problem = next(find_damage(folder), None)
        if problem is not None:
            raise CheckpointError(problem)
        known = read_value(folder, DESCRIPTION).fields(("format", "dtype", "schema", "model"))
        if known["format"].raw != FORMAT:
            found = shown(known["format"].raw)
            raise CheckpointError(f"{folder}: has format {found}, this version reads {FORMAT}; export it again")
        dtype, schema = known["dtype"].text(DTYPES), schema_from(known["schema"])
        settings = OmegaConf.create(checked_group(known["model"].raw, "model", known["model"].source))
        dense, rows = listed_tensors(folder, DENSE), listed_tensors(folder, ROWS)
        slots = {name.removeprefix("model."): slot for name, slot in dense.slots.items()}
        model = _filled(settings, schema, dtype, slots, dense.read, folder)
        self._tower, self._dtype = _Tower(model).eval(), DTYPES[dtype]
        self._tables = model.tables
        self._rows = [_table(rows, table, self._dtype) for table in model.tables]
        self._schema, self._encoding = schema, encoding_in(folder)
        self._reading = _reading(known.get("reading"))

    @torch.no_grad()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits of the B rows of a batch, ids as in training.

        Raises:
            DataError: an id outside its table, where training would refuse it, or a value that is not finite; says where.
        """
        # Logits are by row: none may be dropped.
        batch = check_batch(batch, self._schema, Policy(self._reading.bad_ids, "error"))
        lengths_FB = batch.lengths_FB.view(len(self._rows), -1)
        counts = lengths_FB.sum(1).tolist()
        ids = batch.ids_N.split(counts)
        weights = [None] * len(ids) if batch.weights_N is None else batch.weights_N.split(counts)
        pooled = [self._pool(f, ids[f], lengths_FB[f].long(), weights[f]) for f in range(len(ids))]
        logits_B: torch.Tensor = self._tower(batch.dense_BD.to(self._dtype), torch.stack(pooled, dim=1))
        return logits_B

    def score(self, rows: Any, batch_size: int = 4096) -> torch.Tensor:
        """Probabilities of raw rows, in order: what ``recpipe score`` writes for them.

        Args:
            rows: a file or directory, a frame of pandas, or a table of pyarrow, with the columns of training; labels may be
                missing.
            batch_size: rows at a time.

        Raises:
            ConfigError: the model was not trained on rows of files.
            DataError: columns are missing, or a row cannot be read.
        """
        if self._encoding is None:
            raise ConfigError("this model has no encoding of raw rows (synthetic rows, or an older version): logits takes ids")
        with TemporaryDirectory(prefix="recpipe-served-") as name:
            kind, folder = str(self._encoding.settings.get("name", "")), Path(name)
            path = str(rows) if isinstance(rows, str | Path) else str(write_frame(rows, folder, kind))
            given = encode_given(self._encoding, self._reading, path, folder / "rows", logger.info)
            dataset = given_dataset(self._encoding, self._reading, given.records, folder / "rows", path)
            total = dataset.num_rows("test")
            starts = range(0, total, batch_size)
            parts = [self.logits(dataset.batch("test", 0, one, min(one + batch_size, total))) for one in starts]
        return torch.sigmoid(torch.cat(parts).double()) if parts else torch.empty(0, dtype=torch.float64)

    def _pool(
        self, feature: int, ids: torch.Tensor, lengths_B: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        factors = None if weights is None else weights.to(self._dtype)
        if self._tables[feature].pooling == "mean":
            share = (1.0 / lengths_B.clamp(min=1).to(self._dtype)).repeat_interleave(lengths_B)
            factors = share if factors is None else factors * share
        offsets = lengths_B.cumsum(0) - lengths_B
        return F.embedding_bag(ids, self._rows[feature], offsets, mode="sum", per_sample_weights=factors)


def _reading(known: Value | None) -> DataConfig:
    """What is done with bad ids and one-hot rows, as in training; an export of an older version refuses bad ids."""
    if known is None:
        return DataConfig()
    fields = known.fields(_READING)
    return DataConfig(
        bad_ids=fields["bad_ids"].text(BAD_ID_POLICIES),
        multi_hot_sizes=[one.integer(1) for one in fields["multi_hot_sizes"].items()],
        multi_hot_distribution=fields["multi_hot_distribution"].text(),
        multi_hot_seed=fields["multi_hot_seed"].integer(),
    )


def _table(file: TensorFile, table: TableSpec, dtype: torch.dtype) -> torch.Tensor:
    """The rows of a table, mapped. Raises CheckpointError where they are of another shape or type."""
    rows = file.read(f"tables.{table.name}.weight")
    if rows.shape != (table.num_rows, table.dim) or rows.dtype != dtype:
        raise CheckpointError(
            f"{file.path}: does not fit its settings: table {shown(table.name)} is {rows.dtype} of {tuple(rows.shape)}, "
            f"not {dtype} of {(table.num_rows, table.dim)}"
        )
    return rows
