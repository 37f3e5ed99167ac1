"""Random settings of `recpipe verify`, and the refusals that are expected of them, for `verify_grid` and its test."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

FAMILIES = (
    "gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb", "zbv", "chimera", "dualpipe",
    "dualpipev", "greedy", "auto",
)  # fmt: skip
MODELS = ("dlrm", "dcn_v2", "deepfm", "wide_deep", "wukong", "feature_transformer")
SHARDINGS = ("auto", "table_wise", "row_wise", "column_wise", "table_column_wise", "table_row_wise", "grid", "replicated")
DEPTHS = ("step", "route", "ahead", "spread")
Words = dict[str, str]


@dataclass(frozen=True)
class Setting:
    """One draw.

    Args:
        words: settings of the command line.
        world: ranks.
        tolerance: largest difference that passes.
    """

    words: Words
    world: int
    tolerance: float

    @property
    def command(self) -> str:
        """What repeats it."""
        return "recpipe verify " + " ".join(f"'{key}={value}'" for key, value in self.words.items())


def draw(seed: int, number: int, meshes: tuple[tuple[int, int], ...]) -> Setting:
    """Setting `number` of a seed: the same for ever, whatever was drawn before.

    Args:
        meshes: (replicas, stages) to choose from.
    """
    rng = random.Random(f"{seed} {number}")
    replicas, stages = rng.choice(meshes)
    kind = rng.choices(("exact", "float32", "wire", "dense wire", "compute", "pooled"), (75, 5, 5, 5, 5, 5))[0]
    words = {
        "launch.nproc": str(replicas * stages),
        **_model(rng, stages),
        **_data(rng),
        **_mesh(rng, replicas, stages),
        **_optimizers(rng, kind),
        **_precision(kind),
        "batch_size": str(rng.choice((1, 1, 2, 3, 5, 8, 17))),
        "seed": str(rng.randrange(1000)),
        "steps": str(rng.randint(5, 10)),
    }
    if kind == "pooled" and words["schedule.embedding"] == "spread":
        words["schedule.embedding"] = "step"
    return Setting(words, replicas * stages, float(words["tolerance"]))


def _model(rng: random.Random, stages: int) -> Words:
    name = rng.choice(MODELS)
    words = {"model": name, "model.embedding_dim": "8", "model.dropout": rng.choice(("0", "0", "0.3"))}
    words["model.over_arch_layer_sizes"] = "[" + "12," * (rng.randint(1, 3) + 3 * (stages - 1)) + "1]"
    if name in ("dlrm", "wukong"):
        words["model.dense_arch_layer_sizes"] = "[16,8]"
    if rng.random() < 0.08:
        words["model.batch_norm"] = "true"
    return words


def _data(rng: random.Random) -> Words:
    features = rng.choice((1, 2, 6))
    most = rng.choice((2, 4, 60))
    words = {
        "data.num_train": str(rng.choice((1, 2, 7, 33, 34, 90))),
        "data.num_valid": "5",
        "data.num_test": "5",
        "data.num_features": str(features),
        "data.num_dense": rng.choice(("0", "1", "4")),
        "data.min_ids": "2",
        "data.max_ids": str(most),
    }
    if rng.random() < 0.5:
        words |= {"data.mean_ids": rng.choice(("1.01", "1.5", "2.5")), "data.multi_hot_features": str(rng.randint(1, features))}
    return words


def _mesh(rng: random.Random, replicas: int, stages: int) -> Words:
    words = {"mesh.stages": str(stages), "schedule.embedding": rng.choice(DEPTHS)}
    words["schedule.microbatches"] = rng.choice(("null", "null", "null", "null", "1", "2", "3", "4", "6"))
    if stages > 1:
        words["schedule"] = rng.choice(FAMILIES)
        words["mesh.feed"] = rng.choice(("owner", "owner", "everyone"))
    if replicas * stages > 1:
        words["tables.sharding"] = rng.choice(SHARDINGS)
    if words.get("tables.sharding") in ("table_column_wise", "table_row_wise", "grid") and (replicas * stages) % 2 == 0:
        words["tables.local_size"] = "2"
    return words


def _optimizers(rng: random.Random, kind: str) -> Words:
    if kind != "exact":
        # Rules that divide a gradient by its own size make whole steps of what 16 or 24 bits round away.
        return {"optimizer/table": "sgd", "optimizer/dense": "sgd", "optimizer.dense.learning_rate": "0.05"}
    words = {
        "optimizer/table": rng.choice(("sgd", "adagrad", "rowwise_adagrad", "adam")),
        "optimizer/dense": rng.choice(("sgd", "adagrad", "adam", "adamw")),
        "optimizer.table.l2": rng.choice(("0", "0", "1e-3")),
        "optimizer.dense.weight_decay": rng.choice(("0", "0", "1e-2")),
    }
    if rng.random() < 0.3:
        words["optimizer.dense.clip_norm"] = rng.choice(("0.01", "10"))
    if rng.random() < 0.3:
        words["lr.lr_warmup_steps"] = "3"
    return words


def _precision(kind: str) -> Words:
    if kind == "exact":
        return {"dtype": "float64", "tolerance": "1e-12"}
    more = {
        "float32": {"tolerance": "1e-6"},
        "wire": {"exchange.wire_dtype": "bfloat16", "tolerance": "5e-2"},
        "dense wire": {"exchange.dense_wire_dtype": "bfloat16", "tolerance": "5e-2"},
        # Two rows through layer norms in 16 bits are off by .3 on one process, too: this sees errors, hangs and NaN.
        "compute": {"compute_dtype": "bfloat16", "tolerance": "1"},
        "pooled": {"exchange": "pooled", "tolerance": "1e-6"},
    }
    return {"dtype": "float32", **more[kind]}


Rule = tuple[str, Callable[[Words], bool]]
REFUSALS: tuple[Rule, ...] = (
    (r"batch normalisation couples rows", lambda w: w.get("model.batch_norm") == "true"),
    (r"needs an even number of ranks", lambda w: w.get("schedule") in ("chimera", "dualpipe") and w["mesh.stages"] == "3"),
    (r"cannot run \d+ microbatches", lambda w: w.get("schedule", "1f1b") not in ("gpipe", "1f1b")),
    (r"the model has \d+ blocks", lambda w: int(w["mesh.stages"]) > 1),
    (r"exchange=pooled", lambda w: w.get("exchange") == "pooled"),
    (r"exchange.dense_wire_dtype has no effect", lambda w: "exchange.dense_wire_dtype" in w),
    (r"exchange.wire_dtype has no effect", lambda w: w["launch.nproc"] == "1" or w.get("tables.sharding") == "replicated"),
    (r"schedule.embedding has no effect", lambda w: w.get("exchange") == "pooled" or w.get("tables.sharding") == "replicated"),
    (r"model.dense_arch_layer_sizes has no effect", lambda w: w["data.num_dense"] == "0"),
    (r"columns cannot be cut", lambda w: "column" in w.get("tables.sharding", "") or w.get("tables.sharding") == "grid"),
)
"""Text of a refusal, and the settings that have to be there for it to be right."""


def is_expected(message: str, words: Words) -> bool:
    """Whether a project's error is one that these settings have to give."""
    return any(re.search(text, message) and holds(words) for text, holds in REFUSALS)
