"""Cases 115 and 148: a table whose unseen vector is zero and whose bags are averaged trains as the reference does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from recpipe.data import open_dataset
from recpipe.errors import ConfigError
from recpipe.model.config import SCHEMAS as MODELS
from recpipe.train.config import VerifyConfig
from tests.data.columns import settings, write_columns
from tests.data.lines import silent
from tests.ranks import run_ranks
from tests.train.jobs import _verify

RNG = np.random.default_rng(0)


def write(folder: Path) -> Path:
    """Rows whose held-out part alone has a missing city; tags are bags of none to three values."""
    tags = ["^".join(f"t{k}" for k in RNG.integers(0, 9, n % 4)) for n in range(90)]
    columns = {
        "label": RNG.integers(0, 2, 90),
        "price": RNG.lognormal(2, 2, 90),
        "city": RNG.integers(0, 5, 90),
        "tags": tags,
    }
    return write_columns(folder / "a.csv", columns)


@pytest.mark.parametrize("exchange", ["window", "pooled"])
def test_mean_pooling_and_zero_rows_are_exact_on_two_ranks(tmp_path: Path, exchange: str) -> None:
    data = settings(
        write(tmp_path), dense=["price"], categorical=["city", "tags"], multi_valued=["tags"], pooling={"tags": "mean"},
        frequency_threshold=1,
    )  # fmt: skip
    model = MODELS["dlrm"](embedding_dim=8, dense_arch_layer_sizes=[16, 8])  # type: ignore[call-arg]
    dtype = "float64" if exchange == "window" else "float32"
    cfg = OmegaConf.structured(VerifyConfig(data=data, model=model, batch_size=8, dtype=dtype))
    cfg.exchange.kind, cfg.tables.sharding = exchange, "row_wise"
    differences = run_ranks(_verify, 2, cfg, None)[0]
    assert max(differences.values()) <= (1e-12 if exchange == "window" else 1e-6), differences


def test_pooling_by_column_reaches_the_tables(tmp_path: Path) -> None:
    """Case 148."""
    config = settings(write(tmp_path), categorical=["city", "tags"], multi_valued=["tags"], pooling={"tags": "mean"})
    assert [feature.pooling for feature in open_dataset(config, log=silent).schema.features] == ["sum", "mean"]


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"tag": "mean"}, "did you mean tags"),
        ({"tags": "avg"}, "pooling.tags=avg is unknown; known: sum, mean"),
        ({"city": "mean"}, "has no effect: city has one id a row"),
    ],
)
def test_poolings_that_fit_nothing_are_refused(tmp_path: Path, pooling: dict[str, str], message: str) -> None:
    """Case 148."""
    config = settings(write(tmp_path), categorical=["city", "tags"], multi_valued=["tags"], pooling=pooling)
    with pytest.raises(ConfigError, match=message):
        open_dataset(config, log=silent)
