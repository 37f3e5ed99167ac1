"""Names that are told from settings are those that the data have."""

from __future__ import annotations

import pytest

from recpipe.data import open_dataset
from recpipe.data.config import CriteoData, PreparedData, SyntheticData, TableData
from recpipe.data.names import feature_names
from recpipe.data.prepare.criteo import CriteoFormat


def test_synthetic():
    config = SyntheticData(num_features=3, num_train=8, num_valid=2, num_test=2)
    assert feature_names(config) == open_dataset(config).schema.feature_names


@pytest.mark.parametrize("dense_ids", [False, True])
def test_criteo(dense_ids):
    assert feature_names(CriteoData(dense_ids=dense_ids)) == CriteoFormat(dense_ids=dense_ids).categorical


def test_table():
    assert feature_names(TableData(categorical=["b", "a"])) == ("b", "a")


def test_only_files_tell(tmp_path):
    assert feature_names(PreparedData(path=str(tmp_path))) is None
    (tmp_path / "manifest.json").write_text('{"features": [{"name": "x"}, {"name": "y"}]}')
    assert feature_names(PreparedData(path=str(tmp_path))) == ("x", "y")
