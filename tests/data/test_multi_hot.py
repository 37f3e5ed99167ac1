"""Multi-hot rows made from one-hot ones, and the .npz layout that holds them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from recpipe.batch import Batch
from recpipe.cli.main import main
from recpipe.data import open_dataset
from recpipe.data.config import PreparedData, SyntheticData
from recpipe.data.multi_hot import MultiHot
from recpipe.data.npz import map_npz, write_npz
from recpipe.errors import ConfigError, DataError
from tests.data.lines import criteo_lines, silent, write_lines

SIZES = [1 + n % 4 for n in range(26)]
WRITTEN = "data.multi_hot_sizes=" + str(SIZES).replace(" ", "")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one_hot")
    source = write_lines(folder / "train.txt", criteo_lines(400))
    settings = ["data.frequency_threshold=2", "data.rows_per_shard=150"]
    assert main(["data", "prepare", f"source={source}", f"out={folder / 'out'}", *settings]) == 0
    return folder / "out"


def rows(path: Path, split: str = "train", **changes: object) -> Batch:
    data = open_dataset(PreparedData(path=str(path), shuffle="none", **changes), seed=0, log=silent)
    return data.batch(split, 0, 0, data.num_rows(split))


def bags(batch: Batch) -> list[torch.Tensor]:
    """Ids of each feature, rows x ids."""
    lengths = batch.lengths_FB.view(26, -1)
    return [ids.view(batch.num_rows, -1) for ids in batch.ids_N.split(lengths.sum(dim=1).tolist())]


@pytest.mark.parametrize("distribution", ["uniform", "pareto"])
def test_an_id_is_the_first_of_its_bag_and_has_one_bag(prepared: Path, distribution: str) -> None:
    one_hot = rows(prepared).ids_N.view(26, -1)
    found = bags(rows(prepared, multi_hot_sizes=SIZES, multi_hot_distribution=distribution))
    assert [bag.shape[1] for bag in found] == SIZES
    for feature in range(26):
        assert torch.equal(found[feature][:, 0], one_hot[feature])
        by_id = {int(bag[0]): bag.tolist() for bag in found[feature]}
        assert [by_id[int(first)] for first in one_hot[feature]] == found[feature].tolist()
    again = rows(prepared, multi_hot_sizes=SIZES, multi_hot_distribution=distribution)
    other = rows(prepared, multi_hot_sizes=SIZES, multi_hot_distribution=distribution, multi_hot_seed=1)
    assert torch.equal(torch.cat(found, dim=1), torch.cat(bags(again), dim=1))
    assert not torch.equal(torch.cat(found, dim=1), torch.cat(bags(other), dim=1))


@pytest.mark.parametrize("size", [3, 1000])
def test_ids_are_distributed_as_mlperf_draws_them(size: int) -> None:
    """Against numpy's own draws; the largest distance of two samples of 200,000 is about .004."""
    rng, drawn = np.random.default_rng(0), (50_000, 4)
    wanted = {
        "uniform": rng.integers(0, size, drawn),
        "pareto": np.fmod(np.floor(rng.pareto(0.25, drawn)), size).astype(int),
    }
    shares = {}
    for kind, expected in wanted.items():
        found = MultiHot((5,), (size,), kind, seed=0).bags(0, np.arange(drawn[0]))[:, 1:]
        assert found.min() >= 0 and found.max() < size
        shares[kind], reference = (
            np.cumsum(np.bincount(x.ravel(), minlength=size)) / 200_000 for x in (found, expected)
        )
        assert np.abs(shares[kind] - reference).max() < 0.008, kind
    assert np.abs(shares["uniform"] - shares["pareto"]).max() > 0.05


def test_features_and_slots_have_bags_of_their_own() -> None:
    found = MultiHot((4, 4), (10**6, 10**6), "uniform", seed=0)
    first, second = (found.bags(feature, np.arange(100)) for feature in (0, 1))
    assert len(np.unique(first[:, 1:])) > 290 and not (first[:, 1:] == second[:, 1:]).any()


def test_statistics_know_the_pooling_factor() -> None:
    config = SyntheticData(num_train=2000, num_valid=10, num_test=50, num_features=3, multi_hot_sizes=[1, 5, 2])
    data = open_dataset(config, seed=0, log=silent)
    assert [feature.mean_ids for feature in data.schema.features] == [1.0, 5.0, 2.0]
    assert [entry["mean_ids"] for entry in data.statistics()["features"].values()] == [1.0, 5.0, 2.0]


def test_settings_that_do_not_fit(prepared: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 numbers, the smallest 1; the data set has 26 features"):
        rows(prepared, multi_hot_sizes=[1, 2])
    with pytest.raises(ConfigError, match="has 26 numbers, the smallest 0"):
        rows(prepared, multi_hot_sizes=[0] + [1] * 25)
    with pytest.raises(ConfigError, match="did you mean pareto"):
        rows(prepared, multi_hot_sizes=SIZES, multi_hot_distribution="paretto")
    config = SyntheticData(num_train=50, num_features=2, mean_ids=2.0, multi_hot_features=1, multi_hot_sizes=[1, 2])
    with pytest.raises(ConfigError, match="these are multi-hot as stored"):
        open_dataset(config, seed=0, log=silent)


def test_export_and_import_keep_every_id(prepared: Path, tmp_path: Path) -> None:
    days, back, again = tmp_path / "days", tmp_path / "back", tmp_path / "again"
    assert main(["data", "export", str(prepared), f"npy_dir={days}", WRITTEN]) == 0
    with np.load(days / "day_0_sparse_multi_hot.npz") as file:
        assert [file[str(n)].shape for n in range(26)] == [(150, size) for size in SIZES]
        assert len(file.files) == 26 and file["3"].dtype == np.int32
    assert main(["data", "import", str(back), f"npy_dir={days}"]) == 0
    assert main(["data", "verify", str(back)]) == 0
    for split in ("train", "valid", "test"):
        one, two = rows(prepared, split, multi_hot_sizes=SIZES), rows(back, split)
        for name in ("ids_N", "lengths_FB", "dense_BD", "labels_B"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert main(["data", "export", str(back), f"npy_dir={again}"]) == 0
    for file in days.glob("*.np?"):
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


def test_the_recipe_has_mlperfs_sizes(prepared: Path, tmp_path: Path) -> None:
    assert main(["data", "export", str(prepared), f"npy_dir={tmp_path / 'days'}", "data=mlperf"]) == 0
    sizes = [one.shape[1] for one in map_npz(tmp_path / "days" / "day_0_sparse_multi_hot.npz").values()]
    assert len(sizes) == 26 and sum(sizes) == 214 and sizes[20] == 100


def test_files_of_numpy_are_read_whole_days_in_halves(tmp_path: Path) -> None:
    """As MLPerf's script writes them; the shards hold fewer rows than a day."""
    ids = [np.random.default_rng(n).integers(0, 9, (11, size), dtype=np.int32) for n, size in enumerate(SIZES)]
    for day in (0, 1):
        np.savez(tmp_path / f"day_{day}_sparse_multi_hot.npz", **{str(n): one for n, one in enumerate(ids)})
        np.save(tmp_path / f"day_{day}_dense.npy", np.ones((11, 13), dtype=np.float32))
        np.save(tmp_path / f"day_{day}_labels.npy", np.zeros((11, 1), dtype=np.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recpipe.data.npy_import.ROWS_PER_SHARD", 4)
        assert main(["data", "import", str(tmp_path / "out"), f"npy_dir={tmp_path}"]) == 0
    for split, part in (("train", slice(11)), ("valid", slice(6)), ("test", slice(6, 11))):
        for found, wanted in zip(bags(rows(tmp_path / "out", split)), ids, strict=True):
            assert found.tolist() == wanted[part].tolist()


def test_other_npz_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "day_0_sparse_multi_hot.npz"
    np.save(tmp_path / "day_0_dense.npy", np.ones((3, 13), dtype=np.float32))
    np.save(tmp_path / "day_0_labels.npy", np.zeros((3, 1), dtype=np.int32))
    arguments = ["data", "import", str(tmp_path / "out"), f"npy_dir={tmp_path}"]
    one = np.zeros((3, 2), dtype=np.int32)
    for arrays in ({"0": one, "2": one}, {"ids": one}, {"0": one.astype(np.float32)}, {"0": one[:2]}):
        np.savez(path, **arrays)
        assert main(arguments) != 0
        assert not (tmp_path / "out").exists()
    np.savez_compressed(path, **{"0": one})
    with pytest.raises(DataError, match="is compressed and cannot be mapped"):
        map_npz(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read"):
        map_npz(path)


def test_npz_is_what_numpy_writes(tmp_path: Path) -> None:
    arrays = {"0": np.arange(12, dtype=np.int32).reshape(4, 3), "1": np.zeros((4, 1), dtype=np.int32)}
    np.savez(tmp_path / "numpy.npz", **arrays)
    write_npz(tmp_path / "ours.npz", ((n, one.shape, iter([one[:1], one[1:]])) for n, one in arrays.items()))
    for name in ("numpy.npz", "ours.npz"):
        mapped = map_npz(tmp_path / name)
        assert all((mapped[n] == one).all() for n, one in arrays.items())
    assert {n: one.tolist() for n, one in np.load(tmp_path / "ours.npz").items()} == {
        n: one.tolist() for n, one in arrays.items()
    }
