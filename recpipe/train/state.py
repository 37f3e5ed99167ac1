"""What a checkpoint of a run holds, under names that do not depend on ranks, plan or exchange."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch

from recpipe.embedding.state import Entry
from recpipe.errors import CheckpointError
from recpipe.model import Model
from recpipe.specs import Schema
from recpipe.train.trainer import Scorer, Trainer


def weights(trainer: Scorer) -> dict[str, torch.Tensor | Entry]:
    """What is needed to score: dense weights and table rows."""
    state = trainer.model.state_dict()
    dense = {f"model.{name}": tensor.detach() for name, tensor in state.items() if not tensor.is_meta}
    rows = {name: entry for name, entry in trainer.tables.entries().items() if name.endswith(".weight")}
    return {**dense, **rows}


def everything(trainer: Trainer) -> dict[str, torch.Tensor | Entry]:
    """Weights, optimizer state and the number of updates done."""
    return {
        **weights(trainer),
        **trainer.tables.entries(),
        **dense_optimizer_state(trainer.model, trainer.dense_optimizers.values()),
        "trainer.step": torch.tensor(trainer.step),
    }


def dense_optimizer_state(model: Model, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """State tensors of the dense optimizers, one a stage, by parameter name."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"dense_optimizer.{names[parameter]}.{key}": torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def schema_json(schema: Schema) -> str:
    """The columns a model was trained on."""
    return json.dumps(asdict(schema), indent=1)


def check_schema(saved: dict[str, Any], schema: Schema) -> None:
    """Refuses data of other columns or table sizes, with the differences.

    Raises:
        CheckpointError: names every difference.
    """
    now = json.loads(schema_json(schema))
    differences = []
    if saved["num_dense"] != now["num_dense"]:
        differences.append(f"dense columns: {saved['num_dense']} in the checkpoint, {now['num_dense']} in the data")
    before = {f["name"]: f for f in saved["features"]}
    after = {f["name"]: f for f in now["features"]}
    differences += [f"feature {name} is missing in the data" for name in before if name not in after]
    differences += [f"feature {name} is not in the checkpoint" for name in after if name not in before]
    differences += [
        f"feature {name}: {before[name]['num_ids']} ids in the checkpoint, {after[name]['num_ids']} in the data"
        for name in before
        if name in after and before[name]["num_ids"] != after[name]["num_ids"]
    ]
    if differences:
        raise CheckpointError("the data do not fit the checkpoint: " + "; ".join(differences[:10]))
