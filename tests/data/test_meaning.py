"""Case 134: texts that stand for a missing value, and labels other than 0 and 1."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recpipe.data.prepare.job import prepare
from recpipe.errors import DataError
from tests.data.columns import manifest_of, settings, stored, write_columns
from tests.data.lines import silent

WHOLE: dict[str, Any] = {
    "valid_fraction": 0.0,
    "test_fraction": 0.0,
    "dense_transform": "none",
    "frequency_threshold": 1,
}


@pytest.mark.parametrize(
    "text", ["NA", "N/A", "nan", "NaN", "null", "NULL", "None", "\\N", "-", "?", "#N/A", "<NA>", ""]
)
def test_texts_for_a_missing_number_are_missing(tmp_path: Path, text: str) -> None:
    path = write_columns(tmp_path / "a.csv", {"label": [0, 1] * 20, "price": [text, 2.5] * 20, "city": ["x"] * 40})
    found = manifest_of(path, dense=["price"], categorical=["city"], dense_missing=-7.0, **WHOLE)
    assert found["bad_lines"] == 0 and found["dense"][0]["missing_share"] == 0.5 and found["dense"][0]["min"] == 2.5
    assert stored(path, dense=["price"], categorical=["city"], dense_missing=-7.0, **WHOLE)[:2, 0].tolist() == [-7, 2.5]


@pytest.mark.parametrize(
    ("text", "missing"), [("\\N", True), ("null", True), ("None", True), ("NA", False), ("-", False)]
)
def test_texts_for_a_missing_category(tmp_path: Path, text: str, missing: bool) -> None:
    """`NA` may be Namibia; data.missing_categories says otherwise."""
    path = write_columns(tmp_path / "a.csv", {"label": [0, 1] * 20, "city": [text, "x"] * 20})
    assert (stored(path, "ids", categorical=["city"], **WHOLE)[0, 0] == 0) == missing
    assert stored(path, "ids", categorical=["city"], missing_categories=["NA", "-", text], **WHOLE)[0, 0] == 0


def test_a_number_may_stand_for_missing_in_text_and_parquet(tmp_path: Path) -> None:
    columns = {"label": [0, 1] * 20, "price": [-999.0, 2.5] * 20, "city": ["x"] * 40}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    for path in (write_columns(tmp_path / "a.csv", columns), tmp_path / "b.parquet"):
        found = manifest_of(path, dense=["price"], categorical=["city"], missing=["-999"], **WHOLE)
        assert found["dense"][0]["missing_share"] == 0.5 and found["dense"][0]["min"] == 2.5


LABELS: list[tuple[Any, Any, list[str]]] = [
    (-1, 1, ["1"]), ("no", "yes", ["yes"]), ("false", "true", ["true"]), (1, 2, ["2"]),
    ("1.0", "2.0", ["2"]), ("-", "+", ["+"]),
]  # fmt: skip


@pytest.mark.parametrize(("negative", "positive", "given"), LABELS)
def test_labels_of_two_values_are_asked_for_and_then_right(
    tmp_path: Path, negative: Any, positive: Any, given: list[str]
) -> None:
    """Never trained wrong in silence: the error shows the value and the setting."""
    path = write_columns(tmp_path / "a.csv", {"label": [negative, positive] * 20, "city": ["x"] * 40})
    with pytest.raises(DataError, match=r"data.label_positive=.*'"):
        manifest_of(path, categorical=["city"], **WHOLE)
    labels = stored(path, "labels", categorical=["city"], label_positive=given, **WHOLE)
    assert labels.tolist() == [0.0, 1.0] * 20


@pytest.mark.parametrize("labels", [[-1, 1], [False, True], ["no", "1"], [-1.0, 1.0]])
def test_labels_of_parquet(tmp_path: Path, labels: list[Any]) -> None:
    pq.write_table(pa.table({"label": labels * 20, "city": ["x"] * 40}), tmp_path / "a.parquet")
    found = stored(tmp_path / "a.parquet", "labels", categorical=["city"], label_positive=["1", "true"], **WHOLE)
    assert found.tolist() == [0.0, 1.0] * 20


def test_several_values_may_be_positive_and_a_missing_label_is_not_negative(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "a.csv", {"label": [1, 2, 3, 4, 5, ""] * 20, "city": ["x"] * 120})
    given = {"categorical": ["city"], "label_positive": ["4", "5"], "max_bad_share": 0.5, **WHOLE}
    assert np.bincount(stored(path, "labels", **given).astype(int)).tolist() == [60, 40]
    out = prepare(settings(path, **given), silent)
    reasons = {json.loads(line)["reason"] for line in (out / "quarantine.jsonl").read_text().splitlines()}
    assert reasons == {"label is missing"}
