"""Valid files of every kind that recpipe reads from strangers, made small, and the readers that they have to pass."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from recpipe.data.config import PreparedData, SyntheticData, TableData
from recpipe.data.inspect import render
from recpipe.data.prepare.job import prepare
from recpipe.data.prepared import prepared_dataset, read_manifest
from recpipe.data.verify import verify_directory
from recpipe.model import build_model
from recpipe.model.config import DlrmConfig
from recpipe.planner.plan import FORMAT, load_plan, overrides
from recpipe.planner.report.measured import _summary as measured_summary
from recpipe.schedule.assemble import assemble
from recpipe.schedule.check import check
from recpipe.schedule.families.base import Request
from recpipe.schedule.passes.embedding import Exchange
from recpipe.schedule.profile import Cut, MeshProfile, Profile, load_profile, profiled_cost
from recpipe.schedule.text import format_program, read_program
from recpipe.specs import Feature, Schema
from recpipe.train import serving
from recpipe.train.checkpoint_convert import Stored, summary
from recpipe.train.checkpoint_file import Slot, Written, row_blocks, write_file
from recpipe.train.checkpoint_index import INDEX
from recpipe.train.checkpoint_manifest import MANIFEST, _render, read_text, read_value, write_manifest, write_text
from recpipe.train.config import TrainConfig
from recpipe.train.config_text import from_yaml, to_yaml
from recpipe.train.finished import _summary as finished_summary
from recpipe.train.progress import Progress
from recpipe.train.state import read_schema, schema_json
from recpipe.train.taken import take_settings

SCHEMA = Schema(2, (Feature("a", 5), Feature("b", 3)))
SETTINGS = DlrmConfig(embedding_dim=4, dense_arch_layer_sizes=[4, 4], over_arch_layer_sizes=[4, 1])


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Args:
        name: of the kind.
        make: writes valid files into an empty directory.
        load: reads them as a command would.
        sealed: the directory has a manifest with checksums, which can be made to fit again.
    """

    name: str
    make: Callable[[Path], None]
    load: Callable[[Path], None]
    sealed: bool = False


def seal(folder: Path) -> None:
    """Makes the checksums of a manifest fit the files again."""
    path = folder / MANIFEST
    content = json.loads(path.read_text())["content"]
    for name in content["files"]:
        if (folder / name).is_symlink():
            continue
        data = (folder / name).read_bytes()
        content["files"][name] = [len(data), zlib.crc32(data)]
    path.write_text(_render(content))


def _tensors() -> dict[str, torch.Tensor]:
    model = build_model(SETTINGS, SCHEMA)
    dense = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return dense | {f"tables.{t.name}.weight": torch.arange(t.num_rows * 4.0).view(-1, 4) for t in model.tables}


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> Written:
    slots = [Slot(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    return write_file(path, slots, lambda slot: row_blocks(tensors[slot.name]), {"made": "here"})


def _settings() -> Any:
    groups = {
        "data": OmegaConf.structured(SyntheticData(name="synthetic", num_features=2)),
        "model": OmegaConf.structured(SETTINGS),
    }
    return OmegaConf.merge(OmegaConf.structured(TrainConfig), groups)


def make_checkpoint(folder: Path) -> None:
    """Two files of tensors, a table cut in two."""
    tensors = _tensors()
    table = tensors.pop("tables.t_a.weight")
    parts = [tensors | {"tables.t_a.weight@0,0": table[:2].contiguous()}, {"tables.t_a.weight@2,0": table[2:].contiguous()}]
    (folder / "weights").mkdir()
    names = [f"weights/rank_{rank}.safetensors" for rank in range(2)]
    files = {name: _write(folder / name, part) for name, part in zip(names, parts, strict=True)}
    index: dict[str, Any] = {
        name: {"dtype": "F32", "shape": list(t.shape), "pieces": [[[0] * t.dim(), list(t.shape), names[0], name]]}
        for name, t in tensors.items()
    }
    cuts = [[[0, 0], [2, 4], names[0], "tables.t_a.weight@0,0"], [[2, 0], [3, 4], names[1], "tables.t_a.weight@2,0"]]
    index["tables.t_a.weight"] = {"dtype": "F32", "shape": [5, 4], "pieces": cuts}
    saved = {"step": 3, "progress": Progress(row=4, bad_ids={"a": 1}).to_json(), "versions": {"recpipe": "0"}}
    texts = {
        INDEX: json.dumps(index),
        "config.yaml": to_yaml(_settings()),
        "schema.json": schema_json(SCHEMA),
        "progress.json": json.dumps(saved),
    }
    files |= {name: write_text(folder / name, text) for name, text in texts.items()}
    write_manifest(folder, files, {"step": 3, "epoch": 0, "row": 4, "world_size": 2, "metrics": {"auc": 0.5}})


def load_checkpoint(folder: Path) -> None:
    """As inspect, convert, eval and resume do."""
    stored = Stored(folder)
    for name in stored.index:
        assert bool((stored.whole(name) == stored.whole(name)).numel() >= 0)
    summary(folder)
    cfg = from_yaml(read_text(folder, "config.yaml"), folder / "config.yaml")
    take_settings(cfg, [], folder)
    saved = read_value(folder, "progress.json")
    Progress.from_json(saved["progress"])
    saved["step"].integer()
    read_schema(folder)


def make_served(folder: Path) -> None:
    """An export without the graph, which is never read."""
    tensors = _tensors()
    rows = {name: tensors.pop(name) for name in list(tensors) if name.startswith("tables.")}
    description = {"format": serving.FORMAT, "dtype": "float32", "schema": asdict(SCHEMA), "model": asdict(SETTINGS)}
    files = {serving.DENSE: _write(folder / serving.DENSE, tensors), serving.ROWS: _write(folder / serving.ROWS, rows)}
    files[serving.DESCRIPTION] = write_text(folder / serving.DESCRIPTION, json.dumps(description))
    write_manifest(folder, files, {})


def make_prepared(folder: Path) -> None:
    """Rows of a small table, one column of it multi-valued."""
    text = "label,price,city,tags\n" + "".join(f"{n % 2},{n}.5,c{n % 3},x^y{n % 4}\n" for n in range(60))
    (folder / "rows.csv").write_text(text)
    columns = {"dense": ["price"], "categorical": ["city", "tags"], "multi_valued": ["tags"]}
    config = TableData(path=str(folder / "rows.csv"), out=str(folder / "out"), threads=1, rows_per_shard=40, **columns)
    prepare(config, lambda line: None)
    (folder / "rows.csv").unlink()
    for path in list((folder / "out").rglob("*")):
        if path.is_file() and path.suffix not in (".json", ".npy"):
            path.unlink()


def load_prepared(folder: Path) -> None:
    """As a run, `data inspect` and `data verify` do."""
    place = folder / "out"
    dataset = prepared_dataset(place, PreparedData(name="prepared"), 0)
    for split in ("train", "valid", "test"):
        rows = dataset.num_rows(split)
        if rows:
            dataset.batch(split, 0, 0, min(rows, 8))
    render(read_manifest(place))
    verify_directory(place)


def make_plan(folder: Path) -> None:
    """A plan for two ranks."""
    made_for = {"world": 2, "local_size": 2, "model": "dlrm", "blocks": ["dense", "over"], "data": "synthetic"}
    made_for |= {"global_batch": 8, "table_optimizer": "adagrad", "dense_optimizer": "adam"}
    table = {"table": "t_a", "num_rows": 9, "dim": 4, "sharding": "row_wise", "exchange": "window", "ranks": [0, 1]}
    plan = {"format": FORMAT, "made_for": made_for, "stages": 1, "replicas": 2, "cuts": [], "batch_size": 4}
    plan |= {"schedule": "1f1b", "microbatches": 1, "chunks": 0, "embedding": "ahead", "tables": [table]}
    (folder / "plan.json").write_text(json.dumps(plan))


def make_profile(folder: Path) -> None:
    """A profile of two stages."""
    compute = {f"{op}{stage}": (0.5, 0.01) for op in ("F", "B", "I", "W", "OPT") for stage in range(2)}
    mesh = MeshProfile({f"{op}{s}": (0.1, 0.0) for op in ("EL", "EU", "ED", "EG") for s in range(2)}, 8.0, [0.5, 0.5], 0.3)
    cuts, meshes = {"2": Cut(compute, [8.0], [4.0, 4.0], 1)}, {"2": mesh}
    Profile("dlrm", 2, 8, cuts, meshes, 0.1, 1000.0, [1.0, 2.0], 500.0, 1).save(folder / "profile.json")


def _program() -> Any:
    return assemble("1f1b", Request(2, 2), Exchange("step"))


def load_program(folder: Path) -> None:
    """As golden files and diffs are read."""
    check(read_program(folder / "program.txt"))


def make_summary(folder: Path) -> None:
    """The end of a run."""
    found = {"steps": 3, "epochs": 1, "rows": 24, "split": "test", "auc": 0.5, "valid": {"auc": 0.4}, "rows_per_s": 9.5}
    found |= {"world_size": 2, "table_bytes_by_rank": [4, 5], "bytes_sent_per_step": {"rows": 1.5}, "best_step": 2}
    (folder / "summary.json").write_text(json.dumps(found))


def load_summary(folder: Path) -> None:
    """As resume and the planner's report do."""
    finished_summary(folder / "summary.json")
    measured_summary(folder / "summary.json")


TARGETS = (
    Target("checkpoint", make_checkpoint, load_checkpoint, sealed=True),
    Target("served", make_served, lambda folder: void(serving.ServedModel(folder)), sealed=True),
    Target("prepared", make_prepared, load_prepared),
    Target("plan", make_plan, lambda folder: void(overrides(load_plan(folder / "plan.json")))),
    Target(
        "profile", make_profile, lambda folder: void(profiled_cost(load_profile(folder / "profile.json"), _program()))
    ),
    Target("program", lambda folder: void((folder / "program.txt").write_text(format_program(_program()))), load_program),
    Target("summary", make_summary, load_summary),
)


def void(_: object) -> None:
    """Drops a result."""
