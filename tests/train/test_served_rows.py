"""An exported model scores raw rows outside of any run, as recpipe score does; ids that it cannot have are named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from recpipe.cli.main import main
from recpipe.data import open_dataset
from recpipe.data.config import SyntheticData
from recpipe.errors import ConfigError, DataError
from recpipe.train.serving import ServedModel
from tests.train.days import SMALL, day, scores, train, write
from tests.train.test_score import lines


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was exported, in a place of its own; `other.csv`, and what recpipe score says of it."""
    folder = tmp_path_factory.mktemp("served")
    write(folder / "day1.csv", day(range(16), 300, 1))
    write(folder / "other.csv", day(range(8, 24), 90, 2))
    final = train(folder)
    scores(final, folder / "other.csv", folder / "wanted.txt")
    assert main(["checkpoint", "export", str(final), f"out={folder}/export"]) == 0
    shutil.rmtree(folder / "run")
    shutil.rmtree(folder / "cache")
    return folder


def test_an_export_scores_a_file_and_a_frame(served: Path) -> None:
    """Case 150: the export is enough; ids may be integers, floats or texts in the frame."""
    model, wanted = ServedModel(served / "export"), np.loadtxt(served / "wanted.txt")
    frame = pd.read_csv(served / "other.csv")
    frames = [frame, frame.assign(city=frame["city"].astype(float)), frame.astype({"city": str}).drop(columns="label")]
    for rows in (served / "other.csv", str(served / "other.csv"), *frames):
        np.testing.assert_allclose(model.score(rows, batch_size=40).numpy(), wanted, atol=1e-6)


def test_a_missing_column_of_a_frame_is_named(served: Path) -> None:
    """Case 150."""
    frame = pd.read_csv(served / "other.csv").drop(columns="city")
    with pytest.raises(DataError, match=r"lacks 1 column.*city"):
        ServedModel(served / "export").score(frame)


def test_an_export_of_criteo_rows_scores_lines_and_frames(tmp_path: Path) -> None:
    """Case 150: columns by name or by position; integers with gaps are floats in a frame."""
    (tmp_path / "train.txt").write_text(lines(120, 1))
    (tmp_path / "test.txt").write_text(lines(37, 2))
    words = ["data=criteo", f"data.path={tmp_path}/train.txt", f"data.cache_dir={tmp_path}/cache", *SMALL]
    assert main(["train", *words, "data.frequency_threshold=2", f"run.dir={tmp_path}/run"]) == 0
    wanted = scores(tmp_path / "run", tmp_path / "test.txt", tmp_path / "wanted.txt")
    assert main(["checkpoint", "export", f"{tmp_path}/run", f"out={tmp_path}/export"]) == 0
    model = ServedModel(tmp_path / "export")
    frame = pd.read_csv(tmp_path / "test.txt", sep="\t", header=None, dtype={n: str for n in range(14, 40)})
    named = frame.set_axis(["label", *(f"int_{n}" for n in range(13)), *(f"cat_{n}" for n in range(26))], axis=1)
    for rows in (tmp_path / "test.txt", frame, named.drop(columns="label").assign(more=1)):
        np.testing.assert_allclose(model.score(rows).numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("policy", ["error", "clamp"])
def test_an_id_outside_its_table_is_named_or_treated_as_in_training(tmp_path: Path, policy: str) -> None:
    """Case 141: the feature, the row and the bound; the policy of the run."""
    words = ["data.num_train=64", "data.num_valid=0", "data.num_test=8", f"data.bad_ids={policy}", *SMALL]
    assert main(["train", *words, f"run.dir={tmp_path}/run"]) == 0
    assert main(["checkpoint", "export", f"{tmp_path}/run", f"out={tmp_path}/export"]) == 0
    model = ServedModel(tmp_path / "export")
    data = open_dataset(SyntheticData(num_train=64, num_valid=0, num_test=8), 0)
    rows, bound = data.batch("test", 0, 0, 8), data.schema.features[2].num_ids
    ids = rows.ids_N.view(26, 8).clone()
    ids[2, 5] = 1_000_000
    bad = replace(rows, ids_N=ids.flatten())
    if policy == "error":
        with pytest.raises(DataError, match=rf"id 1000000 at feature cat_2, row 5 is outside \[0, {bound}\)"):
            model.logits(bad)
        return
    ids[2, 5] = bound - 1
    assert torch.equal(model.logits(bad), model.logits(replace(rows, ids_N=ids.flatten())))
    with pytest.raises(ConfigError, match="no encoding of raw rows"):
        model.score(tmp_path / "rows.csv")
