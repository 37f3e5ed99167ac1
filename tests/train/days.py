"""Days of a small log as files, for tests: a label that city and price decide, ids whose frequencies change from day to day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recpipe.cli.main import main

TABLE = ["data=table", "data.dense=[price]", "data.categorical=[city,kind]"]
SMALL = [
    "launch.nproc=1", "batch_size=32", "log.progress=none", "model.embedding_dim=4", "model.dense_arch_layer_sizes=[8,4]",
    "model.over_arch_layer_sizes=[8,1]",
]  # fmt: skip


def day(cities: range, rows: int, seed: int, suffix: str = "") -> list[dict[str, Any]]:
    """Rows of a day: the later cities of the range are the more frequent ones.

    Args:
        suffix: of a city's name in the file.
    """
    draw = np.random.default_rng(seed)
    weights = np.arange(1.0, len(cities) + 1)
    chosen = draw.choice(np.array(cities), rows, p=weights / weights.sum())
    price = draw.normal(5.0, 2.0, rows).round(3)
    chance = 1 / (1 + np.exp(-(1.5 * np.where(chosen % 2, 1, -1) + 0.2 * (price - 5.0))))
    return [
        {"id": f"row-{n}", "label": int(draw.random() < chance[n]), "price": price[n], "city": f"{chosen[n]}{suffix}",
         "kind": f"k{chosen[n] % 3}"}
        for n in range(rows)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], columns: str = "id,label,price,city,kind") -> Path:
    """A CSV file of these columns, in this order."""
    names = columns.split(",")
    lines = [columns, *(",".join(str(row.get(name, "")) for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def train(folder: Path, *words: str) -> Path:
    """A run in `folder/run` on `folder/day1.csv`; gives its last checkpoint."""
    places = [f"data.path={folder}/day1.csv", f"data.cache_dir={folder}/cache", f"run.dir={folder}/run"]
    assert main(["train", *TABLE, *SMALL, *places, *words]) == 0
    return folder / "run" / "checkpoints" / "final"


def scores(checkpoint: Path, file: Path, out: Path, *words: str) -> np.ndarray:
    """What `recpipe score` writes for a file."""
    assert main(["score", f"checkpoint={checkpoint}", f"input={file}", f"output={out}", "launch.nproc=1", *words]) == 0
    return np.loadtxt(out)
