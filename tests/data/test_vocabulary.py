"""Ids by frequency against a plain counter; counts that spill to disk give the same ids; hashing is fixed."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recpipe.data.prepare.counts import KeyCounter
from recpipe.data.prepare.ranking import FeatureCounts, rank_keys
from recpipe.data.prepare.vocabulary import HashEncoder, load_encoder

KEYS = st.lists(st.lists(st.integers(0, 40), max_size=60), min_size=1, max_size=8)


def expected_ids(keys: list[int], threshold: int, max_ids: int) -> dict[int, int]:
    """By sorting everything."""
    kept = sorted((k for k, n in Counter(keys).items() if n >= threshold), key=lambda k: (-Counter(keys)[k], k))
    return {key: number + 2 for number, key in enumerate(kept[: max_ids - 2] if max_ids else kept)}


def rank(parts: list[np.ndarray], folder: Path, budget: int, threshold: int, max_ids: int = 0) -> FeatureCounts:
    counter = KeyCounter(folder / "runs", budget)
    for part in parts:
        counter.add(part)
    counts = rank_keys(counter, folder, "f", threshold, max_ids)
    counter.close()
    assert not (folder / "runs").exists()
    return counts


@settings(deadline=None, max_examples=50)
@given(parts=KEYS, threshold=st.integers(1, 4), max_ids=st.sampled_from([0, 3, 5]), budget=st.sampled_from([64, 10**6]))
def test_ids_equal_a_plain_counter(tmp_path_factory, parts, threshold, max_ids, budget) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("vocabulary")
    counts = rank([np.array(part, dtype=np.uint32) for part in parts], folder, budget, threshold, max_ids)
    flat = [key for part in parts for key in part]
    wanted = expected_ids(flat, threshold, max_ids)
    encoder = load_encoder(folder, "f", counts.num_ids, mapped=False)
    assert encoder.encode(np.arange(42, dtype=np.uint32)).tolist() == [wanted.get(key, 1) for key in range(42)]
    assert counts.num_ids == len(wanted) + 2
    assert counts.lookups == len(flat)
    assert counts.distinct == len(set(flat))
    assert counts.covered == sum(Counter(flat)[key] for key in wanted)


def test_spilled_runs_are_written_and_give_the_same_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 2**64, 500, dtype=np.uint64) for _ in range(20)] * 2
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    counter = KeyCounter(tmp_path / "probe", 20_000)
    for part in parts:
        counter.add(part)
    assert len(list((tmp_path / "probe").iterdir())) > 4
    small, large = (rank(parts, tmp_path / n, b, 2) for n, b in (("small", 20_000), ("large", 10**8)))
    assert small == large
    for name in ("f.keys.npy", "f.ids.npy"):
        assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "large" / name).read_bytes()


def test_mapped_vocabulary_encodes_the_same(tmp_path: Path) -> None:
    counts = rank([np.array([5, 5, 9, 9, 9, 1], dtype=np.uint32)], tmp_path, 10**6, 2)
    keys = np.array([9, 5, 1, 0, 2**32 - 1], dtype=np.uint32)
    ids = [load_encoder(tmp_path, "f", counts.num_ids, mapped).encode(keys).tolist() for mapped in (False, True)]
    assert ids == [[2, 3, 1, 1, 1]] * 2


def test_unseen_neighbours_are_rare_not_nearest(tmp_path: Path) -> None:
    """Case 7."""
    counts = rank([np.array([10, 10, 20, 20], dtype=np.uint32)], tmp_path, 10**6, 1)
    encoder = load_encoder(tmp_path, "f", counts.num_ids, mapped=False)
    assert encoder.encode(np.array([9, 11, 19, 21], dtype=np.uint32)).tolist() == [1, 1, 1, 1]


def test_top_share_is_of_all_lookups(tmp_path: Path) -> None:
    counts = rank([np.array([7] * 6 + [8] * 3 + [9], dtype=np.uint32)], tmp_path, 10**6, 1)
    assert counts.top_share == {"1": 0.6, "10": 1.0, "100": 1.0, "1000": 1.0}


def test_hash_is_the_same_on_every_machine_and_differs_between_features() -> None:
    keys = np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint64)
    ids = HashEncoder(1000, salt=0).encode(keys)
    assert ids.tolist() == HashEncoder(1000, salt=0).encode(keys.astype(np.uint32)).tolist() == GOLDEN
    assert ids.tolist() != HashEncoder(1000, salt=1).encode(keys).tolist()


@pytest.mark.parametrize("size", [3, 1000, 2**31])
def test_hash_never_gives_the_id_of_missing_values(size: int) -> None:
    ids = HashEncoder(size, salt=4).encode(np.arange(20_000, dtype=np.uint64))
    assert ids.min() >= 1 and ids.max() < size


GOLDEN = [974, 625, 880, 575]
