"""What a checkpoint of a run holds, under names that do not depend on ranks, plan or exchange."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from recpipe.comm import Groups
from recpipe.embedding.state import Entry, Piece
from recpipe.errors import CheckpointError
from recpipe.model import Model
from recpipe.specs import POOLINGS, Feature, Schema
from recpipe.train.checkpoint_manifest import read_value
from recpipe.train.generators import host_state
from recpipe.train.trainer import Scorer, Trainer
from recpipe.untrusted import Value, typed

WINDOW, LOSS, RANDOM = "run.metric_window", "run.loss_since_log", "run.random_state"
HOST_RANDOM = "run.host_random_state"
OPTIMIZER = "dense_optimizer."
_MOST_COLUMNS = 1 << 20
_MOST_ZERO_ROWS = 16


def weights(trainer: Scorer) -> dict[str, torch.Tensor | Entry]:
    """What is needed to score: dense weights and table rows."""
    state = trainer.model.state_dict()
    dense = {f"model.{name}": tensor.detach() for name, tensor in state.items() if not tensor.is_meta}
    rows = {name: entry for name, entry in trainer.tables.entries().items() if name.endswith(".weight")}
    return {**dense, **rows}


def everything(trainer: Trainer) -> dict[str, torch.Tensor | Entry]:
    """Weights and optimizer state: what this rank holds of it."""
    return {
        **weights(trainer),
        **trainer.tables.entries(),
        **dense_optimizer_state(trainer.model, trainer.dense_optimizers.values()),
    }


def run_tensors(sums: Mapping[str, torch.Tensor], groups: Groups) -> dict[str, Entry]:
    """What belongs to the run and not to the model, one slice a rank: sums over this rank's rows, random states."""
    mine = {**sums, RANDOM: torch.get_rng_state(), HOST_RANDOM: host_state()}
    return {name: _slice_of(tensor, groups) for name, tensor in mine.items()}


def _slice_of(tensor: torch.Tensor, groups: Groups) -> Entry:
    offsets = (groups.rank, *(0 for _ in tensor.shape))
    return Entry((groups.world, *tensor.shape), tensor.dtype, (Piece(offsets, tensor.unsqueeze(0), True),))


def dense_optimizer_state(model: Model, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """State tensors of the dense optimizers, one a stage, by parameter name."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{OPTIMIZER}{names[parameter]}.{key}": torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def schema_json(schema: Schema) -> str:
    """The columns a model was trained on."""
    return json.dumps(asdict(schema), indent=1)


def read_schema(folder: Path) -> Schema:
    """The columns that a checkpoint's model was trained on.

    Raises:
        CheckpointError: they are damaged.
    """
    return schema_from(read_value(folder, "schema.json"))


def schema_from(saved: Value) -> Schema:
    """What `schema_json` gave, read from a file. Raises an error of the file's kind."""
    known = saved.fields(("num_dense", "features"), ())
    features = [_feature(value) for value in known["features"].items(most=_MOST_COLUMNS)]
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        raise known["features"].wrong("have a name twice")
    return Schema(known["num_dense"].integer(high=_MOST_COLUMNS), tuple(features))


def _feature(saved: Value) -> Feature:
    kinds = {"name": "text", "num_ids": "integer", "mean_ids": "number", "weighted": "flag"}
    known = saved.fields(("name", "num_ids"), (*kinds, "pooling", "zero_rows"))
    pooling = known["pooling"].text(choices=POOLINGS) if "pooling" in known else "sum"
    zero = known["zero_rows"].items(most=_MOST_ZERO_ROWS) if "zero_rows" in known else []
    rest = {name: value for name, value in known.items() if name in kinds}
    return Feature(**typed(rest, kinds), zero_rows=tuple(one.integer() for one in zero), pooling=pooling)


def check_schema(saved: Schema, schema: Schema, may_grow: bool = False) -> None:
    """Refuses data of other columns or table sizes, with the differences.

    Args:
        saved: that of the checkpoint.
        may_grow: tables may have more rows now.

    Raises:
        CheckpointError: names every difference.
    """
    differences = []
    if saved.num_dense != schema.num_dense:
        differences.append(f"dense columns: {saved.num_dense} in the checkpoint, {schema.num_dense} in the data")
    before = {f.name: f.num_ids for f in saved.features}
    after = {f.name: f.num_ids for f in schema.features}
    differences += [f"feature {name} is missing in the data" for name in before if name not in after]
    differences += [f"feature {name} is not in the checkpoint" for name in after if name not in before]
    if list(before) != list(after) and not differences:
        differences.append(f"the features have another order: {', '.join(before)} in the checkpoint")
    both = [name for name in before if name in after]
    sizes = [name for name in both if before[name] != after[name] and not (may_grow and before[name] < after[name])]
    differences += [
        f"feature {name}: {before[name]} ids in the checkpoint, {after[name]} in the data" for name in sizes
    ]
    grown = bool(sizes) and all(before[name] < after[name] for name in sizes) and len(differences) == len(sizes)
    if differences:
        more = f" and {len(differences) - 10} more" if len(differences) > 10 else ""
        hint = "; resume_allow_grow=true lets tables have more rows" if grown else ""
        raise CheckpointError("the data do not fit the checkpoint: " + "; ".join(differences[:10]) + more + hint)
