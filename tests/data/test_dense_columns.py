"""Cases 116 and 148: the transform of each dense column, chosen by the column or given for it, and what is said of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recpipe.data.prepare.spread import Spread, bins_of, values_of
from recpipe.data.prepared_manifest import _check_column
from recpipe.errors import ConfigError, DataError
from recpipe.untrusted import Source, Value
from tests.data.columns import manifest_of, stored, warnings_of, write_columns

RNG = np.random.default_rng(0)
ROWS = 600
LABELS = RNG.integers(0, 2, ROWS)
KINDS: dict[str, tuple[np.ndarray, str]] = {
    "negative": (RNG.uniform(-30, -3, ROWS), "standardize"),
    "clicks": (RNG.zipf(1.5, ROWS).clip(max=10**7), "log1p"),
    "price": (RNG.lognormal(3, 1.5, ROWS).round(2), "log1p"),
    "age": (RNG.integers(18, 90, ROWS), "standardize"),
    "rate": (RNG.beta(1, 20, ROWS), "standardize"),
    "balance": (RNG.normal(0, 1e4, ROWS), "standardize"),
    "is_new": (RNG.integers(0, 2, ROWS), "standardize"),
    "huge": (RNG.uniform(1e300, 1e301, ROWS), "standardize"),
    "created": (1.7e9 + RNG.uniform(0, 86400, ROWS).round(), "standardize"),
}


def table(folder: Path, columns: dict[str, Any], name: str = "a.csv", rows: int = ROWS) -> Path:
    """A table with labels and one category."""
    return write_columns(folder / name, {"label": LABELS[:rows], **columns, "city": ["x"] * rows})


def one(folder: Path, values: Any, **changes: Any) -> dict[str, Any]:
    """Settings of a table with one dense column."""
    return {"path": table(folder, {"value": values}), "dense": ["value"], "categorical": ["city"], **changes}


def test_auto_chooses_by_the_column_and_says_why(tmp_path: Path) -> None:
    """Case 116: negative values that decide the label keep their differences; skewed counts get a logarithm."""
    path = table(tmp_path, {name: values for name, (values, _) in KINDS.items()})
    found = manifest_of(path, dense=list(KINDS), categorical=["city"])
    assert {e["name"]: e["transform"] for e in found["dense"]} == {name: kind for name, (_, kind) in KINDS.items()}
    assert all(entry["because"] for entry in found["dense"])
    dense = stored(path, dense=list(KINDS), categorical=["city"])
    for number, name in enumerate(KINDS):
        if name != "huge":
            assert len(np.unique(dense[:, number])) > 0.9 * len(np.unique(KINDS[name][0].astype(float))) * 0.8, name
    assert abs(dense[:, 0].mean()) < 1e-5 and dense[:, 0].std() == pytest.approx(1.0, abs=1e-5)


def test_auto_is_the_same_however_the_input_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {name: values for name, (values, _) in KINDS.items() if name != "huge"}
    path = table(tmp_path, columns)
    given = {"dense": list(columns), "categorical": ["city"]}
    whole = manifest_of(path, out=str(tmp_path / "one"), threads=1, **given)
    monkeypatch.setattr("recpipe.data.prepare.job.chunk_size", lambda limit, threads: 3000)
    assert manifest_of(path, out=str(tmp_path / "many"), threads=3, **given)["dense"] == whole["dense"]


def test_a_missing_value_of_a_standardized_column_is_its_mean(tmp_path: Path) -> None:
    values: list[Any] = [None if n % 3 == 0 else 1000.0 + n for n in range(ROWS)]
    given = one(tmp_path, values, valid_fraction=0.0, test_fraction=0.0)
    dense = stored(given.pop("path"), **given)[:, 0]
    assert dense[::3] == pytest.approx(0.0, abs=1e-6)
    assert np.delete(dense, slice(None, None, 3)).std() == pytest.approx(1.0, abs=1e-5)
    given = one(tmp_path, values, valid_fraction=0.0, test_fraction=0.0, dense_missing=0.0)
    assert stored(given.pop("path"), **given)[:, 0][::3].max() < -1


def test_transforms_by_column(tmp_path: Path) -> None:
    """Case 148."""
    path = table(tmp_path, {"price": np.arange(ROWS), "clicks": np.arange(ROWS)})
    given = {"dense": ["price", "clicks"], "categorical": ["city"], "valid_fraction": 0.0, "test_fraction": 0.0}
    dense = stored(path, transforms={"price": "none", "clicks": "log1p"}, **given)
    assert dense[:, 0].tolist() == list(range(ROWS))
    assert dense[:, 1] == pytest.approx(np.log1p(np.arange(ROWS)), rel=1e-6)
    entries = manifest_of(path, transforms={"price": "none", "clicks": "log1p"}, **given)["dense"]
    assert [entry["transform"] for entry in entries] == ["none", "log1p"]


def test_thresholds_by_column(tmp_path: Path) -> None:
    """Case 148: and the manifest tells the threshold of each."""
    path = write_columns(
        tmp_path / "a.csv", {"label": [0, 1] * 6, "a": [*"xxxxyyyzzw", "", ""], "b": list("xxxxyyyzzwvv")}
    )
    given = {"categorical": ["a", "b"], "frequency_threshold": 1, "valid_fraction": 0.0, "test_fraction": 0.0}
    entries = manifest_of(path, frequency_thresholds={"b": 3}, **given)["features"]
    assert [entry["num_ids"] for entry in entries] == [6, 4]
    assert [entry["threshold"] for entry in entries] == [1, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transforms": {"valu": "none"}}, "data.transforms names valu, .*did you mean value"),
        ({"transforms": {"city": "none"}}, "data.transforms names city, which is not a dense column"),
        ({"transforms": {"value": "standard"}}, "transforms.value=standard is unknown; did you mean standardize"),
        ({"frequency_thresholds": {"citi": 3}}, "frequency_thresholds names citi, .*did you mean city"),
        ({"frequency_thresholds": {"city": 0}}, "frequency_thresholds.city=0 must be at least 1"),
    ],
)
def test_settings_by_column_that_name_nothing_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    """Case 148."""
    given = one(tmp_path, np.arange(ROWS))
    with pytest.raises(ConfigError, match=message):
        manifest_of(given.pop("path"), **given, **change)


@pytest.mark.parametrize(
    ("values", "transform", "words"),
    [
        (RNG.uniform(-30, -3, ROWS), "log", "the transform log maps 100%"),
        (RNG.uniform(-30, 3, ROWS), "log", "the transform log maps 8"),
        (RNG.normal(-1, 1, ROWS), "log1p", "the transform log1p maps"),
        (RNG.uniform(0, 1e-4, ROWS), "log", "the transform log maps 100%"),
        (1.7e9 + RNG.uniform(0, 86400, ROWS), "log1p", "the transform log1p maps 100%"),
        (RNG.uniform(1e300, 1e301, ROWS), "none", "the transform none maps 100%"),
        (np.full(ROWS, 7), "auto", "is 7 in every training row"),
        ([None] * ROWS, "auto", "has no value in training rows"),
    ],
)
def test_a_column_that_says_nothing_is_told(tmp_path: Path, values: Any, transform: str, words: str) -> None:
    """Case 116: more than half of the spread goes to one value, or there is no spread."""
    given = one(tmp_path, values, dense_transform=transform)
    (warning,) = warnings_of(given.pop("path"), **given)
    assert words in warning and "value" in warning


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("created", "huge")])
@pytest.mark.parametrize("transform", ["auto", "standardize"])
def test_ordinary_columns_raise_no_warning(tmp_path: Path, name: str, transform: str) -> None:
    given = one(tmp_path, KINDS[name][0], dense_transform=transform)
    assert warnings_of(given.pop("path"), **given) == []


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        (RNG.lognormal(3, 1, 100) * 100, "is the unit the same"),
        (RNG.lognormal(3, 1, 100) / 100, "is the unit the same"),
        (RNG.uniform(1e6, 2e6, 100), "far outside"),
        ([None] * 100, "missing in 100% of held-out rows"),
    ],
)
def test_held_out_values_unlike_those_of_training_are_told(tmp_path: Path, held_out: Any, words: str) -> None:
    """Case 116: cents for euros, another column, a column that the new file lacks."""
    valid = table(tmp_path, {"value": held_out}, "valid.csv", rows=100)
    given = one(tmp_path, RNG.lognormal(3, 1, ROWS), valid_path=str(valid))
    (warning,) = warnings_of(given.pop("path"), **given)
    assert words in warning and "column value" in warning


def test_bins_are_in_the_order_of_values() -> None:
    values = np.sort(np.concatenate([RNG.normal(0, 1e5, 1000), [0.0, -0.0, 1e300, -1e300, 3e-40], np.arange(256)]))
    assert (np.diff(bins_of(values)) >= 0).all()
    assert values_of(bins_of(np.arange(-256.0, 257.0))).tolist() == list(range(-256, 257))


def test_quantiles_are_those_of_the_values_to_the_width_of_a_bin() -> None:
    values, spread = RNG.lognormal(2, 2, 5000), Spread()
    for part in np.array_split(values, 7):
        spread.add(part, 1)
    for share in (0.01, 0.5, 0.99):
        assert spread.quantile(share) == pytest.approx(np.quantile(values, share, method="inverted_cdf"), rel=0.01)
    assert spread.missing == 7 and spread.count == 5000


@pytest.mark.parametrize("name", ["mean", "deviation"])
def test_a_manifest_without_the_scale_of_a_column_is_damaged(tmp_path: Path, name: str) -> None:
    """Case 126: the values would be others, in silence."""
    manifest = {"transform": "standardize", "mean": 1.0, "deviation": 2.0, "name": "price", "min": 0, "max": 9}
    manifest |= {"missing_share": 0.0}
    column, default = Value(manifest, Source(tmp_path)), Value("log", Source(tmp_path))
    _check_column(column, default)
    del manifest[name]
    with pytest.raises(DataError, match=f"has no {name}"):
        _check_column(column, default)
