"""recpipe score: every line of a file, labelled or not, at any number of ranks, scored as the held-out rows of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from recpipe.cli.main import main
from tests.data.lines import criteo_lines

SETTINGS = ["model.embedding_dim=8", "model.dense_arch_layer_sizes=[16,8]", "model.over_arch_layer_sizes=[8,1]"]


def lines(num: int, seed: int) -> str:
    """Criteo lines; ids may be ones that training has not seen."""
    return "".join(f"{line.decode()}\n" for line in criteo_lines(num, seed))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on Criteo lines whose test rows are those of `test.txt`."""
    folder = tmp_path_factory.mktemp("scored")
    (folder / "train.txt").write_text(lines(120, 1))
    (folder / "test.txt").write_text(lines(37, 2))
    (folder / "bare.txt").write_text(
        "".join(line.partition("\t")[2] for line in lines(37, 2).splitlines(keepends=True))
    )
    words = [f"data.path={folder}/train.txt", f"data.test_path={folder}/test.txt", f"data.cache_dir={folder}/cache"]
    words += [
        "data=criteo",
        "data.frequency_threshold=2",
        "launch.nproc=1",
        "batch_size=16",
        "log.progress=none",
        *SETTINGS,
    ]
    assert main(["train", *words, f"run.dir={folder}/run"]) == 0
    assert (
        main(["eval", f"checkpoint={folder}/run/checkpoints/final", "launch.nproc=1", f"output={folder}/eval.txt"]) == 0
    )
    return folder


@pytest.mark.parametrize(("nproc", "name"), [(1, "test.txt"), (2, "bare.txt")])
def test_scores_are_those_of_evaluation_in_row_order(trained: Path, nproc: int, name: str) -> None:
    wanted = np.loadtxt(trained / "eval.txt")
    for out in (f"{nproc}.txt", f"{nproc}.parquet")[: 3 - nproc]:
        words = [f"checkpoint={trained}/run", f"input={trained / name}", f"output={trained / out}"]
        assert main(["score", *words, f"launch.nproc={nproc}"]) == 0
        path = trained / out
        found = parquet.read_table(path)["score"].to_numpy() if path.suffix == ".parquet" else np.loadtxt(path)
        assert len(found) == 37 and len(set(found)) > 30
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert not path.with_name(f".{path.name}.rows").exists()


def test_a_line_that_cannot_be_read_is_named(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores are by line: none may be left out in silence."""
    (trained / "bad.txt").write_text(lines(3, 5) + "1\tx\n" + lines(2, 6))
    words = [f"checkpoint={trained}/run/checkpoints/final", f"input={trained}/bad.txt", f"output={trained}/bad.out"]
    assert main(["score", *words, "launch.nproc=1"]) == 1
    assert "bad.txt" in capsys.readouterr().err
    assert not (trained / "bad.out").exists() and not (trained / ".bad.out.rows").exists()
