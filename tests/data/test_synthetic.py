"""Rows of a teacher: the same for everyone, skewed, with missing values, and as hard as they say."""

import numpy as np
import pytest
import torch

from recpipe.data import open_dataset
from recpipe.data.config import SyntheticData
from recpipe.data.dataset import Dataset
from recpipe.data.rows import Rows
from recpipe.data.score import auc, logloss
from recpipe.data.synthetic.dataset import cut
from tests.data.lines import silent


def small(seed: int = 0, **changes: object) -> Dataset:
    sizes = {"num_train": 3000, "num_valid": 300, "num_test": 2000, "num_features": 6, "max_ids": 300}
    return open_dataset(SyntheticData(**(sizes | changes)), seed=seed, log=silent)


def everything(data: Dataset, split: str = "train") -> list:
    batch = data.batch(split, 0, 0, data.num_rows(split))
    return [batch.dense_BD.tolist(), batch.ids_N.tolist(), batch.labels_B.tolist(), batch.lengths_FB.tolist()]


def test_every_process_draws_the_same_rows() -> None:
    assert everything(small(), "test") == everything(small(), "test")


def test_run_seed_changes_the_order_and_teacher_seed_the_rows() -> None:
    assert everything(small(seed=1), "test") == everything(small(seed=2), "test")
    assert everything(small(seed=1)) != everything(small(seed=2))
    assert everything(small(teacher_seed=8), "test") != everything(small(teacher_seed=9), "test")
    assert everything(small(seed=8, teacher_seed=0), "test") != everything(small(seed=9, teacher_seed=0), "test")


def test_ids_are_heavy_tailed_and_some_are_missing() -> None:
    data = small(missing_share=0.2)
    batch = data.batch("train", 0, 0, 3000)
    largest = max(range(6), key=lambda f: data.schema.features[f].num_ids)
    ids = batch.ids_N.view(6, -1)[largest].numpy()
    share = np.bincount(ids) / len(ids)
    assert abs(share[0] - 0.2) < 0.03
    assert share[1] > 5 * share[10] > 0
    assert len(np.unique(ids)) > 100
    assert abs((batch.dense_BD == 0).float().mean() - 0.2) < 0.03


@pytest.mark.parametrize("base_rate", [0.05, 0.25, 0.5])
def test_base_rate_is_as_asked(base_rate: float) -> None:
    labels = small(base_rate=base_rate).batch("train", 0, 0, 3000).labels_B
    assert abs(float(labels.mean()) - base_rate) < 0.03


def test_signal_sets_how_well_the_teacher_scores() -> None:
    weak, strong = small(signal=0.3).teacher, small(signal=3.0).teacher
    assert weak is not None and strong is not None
    assert 0.5 < weak["auc"] < 0.65 < 0.9 < strong["auc"] < 1.0
    assert strong["logloss"] < weak["logloss"]


def test_multi_hot_rows_have_bags_of_many_sizes() -> None:
    data = small(mean_ids=4.0, multi_hot_features=2)
    batch = data.batch("train", 0, 0, 3000)
    lengths = batch.lengths_FB.view(6, -1)
    assert bool((lengths[:4] == 1).all()) and not batch.one_hot
    assert int(lengths[4:].min()) == 0 and int(lengths[4:].max()) > 8
    assert data.schema.features[5].mean_ids == pytest.approx(4.0, abs=0.2)
    assert torch.isfinite(batch.dense_BD).all()


def test_cut_takes_the_ids_of_its_rows() -> None:
    lengths = np.array([[1, 2], [0, 1], [3, 0]], dtype=np.int32)
    rows = Rows(np.zeros((3, 1), np.float32), np.arange(7), np.zeros(3, np.float32), lengths)
    assert cut(rows, 1, 3).ids.tolist() == [3, 4, 5, 6]


def test_auc_and_logloss_of_known_scores() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    assert auc(labels, np.array([0.1, 0.4, 0.35, 0.35, 0.8])) == pytest.approx(5.5 / 6)
    assert auc(labels, np.full(5, 0.5)) == 0.5
    assert np.isnan(auc(np.ones(3), np.arange(3)))
    assert logloss(np.array([1, 0]), np.array([0.5, 0.25])) == pytest.approx((np.log(2) - np.log(0.75)) / 2)
    assert np.isfinite(logloss(np.array([1, 0]), np.array([0.0, 1.0])))


def test_statistics_describe_the_rows() -> None:
    statistics = small(num_features=2, min_ids=2, max_ids=2, missing_share=0.5).statistics()
    feature = statistics["features"]["cat_0"]
    assert statistics["sampled_rows"] == 3000
    assert abs(feature["missing_share"] - 0.5) < 0.05
    assert feature["top_share"]["10"] == 1.0
    assert feature["unique_share"]["256"] == pytest.approx(2 / 256, rel=0.1)
