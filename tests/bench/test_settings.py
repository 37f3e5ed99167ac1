"""Names of contestants and links, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from recpipe.bench.links import bits_per_second
from recpipe.bench.settings import BF16, BenchConfig, parse_contestant, parse_mesh, workloads
from recpipe.errors import ConfigError


def test_a_contestant_is_read():
    found = parse_contestant("window:2x3:m4:route:tables.sharding=row_wise:seed=1", 6)
    assert (found.kind, found.replicas, found.stages, found.microbatches, found.depth) == ("window", 2, 3, 4, "route")
    assert found.settings == ("tables.sharding=row_wise", "seed=1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TrainPipelineSparsDist", "did you mean TrainPipelineSparseDist"),
        ("windw:2x1:m1:ahead", "did you mean window"),
        ("window:2x1:1:ahead", "for instance window:2x1:m2:ahead"),
        ("window:2x1:m1:deep", "DEPTH one of step, route, ahead"),
        ("window:2x2:m1:ahead", "multiply to the 2 ranks"),
        ("TrainPipelineBase:x", "takes no settings"),
    ],
)
def test_a_wrong_contestant_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        parse_contestant(name, 2)


def test_only_stale_pipelines_are_called_stale():
    assert "stale" in parse_contestant("TrainPipelineSemiSync", 2).label
    assert not parse_contestant("TrainPipelineSemiSync", 2).is_synchronous_torchrec
    assert parse_contestant("TrainPipelineBase", 2).is_synchronous_torchrec
    assert "stale" not in parse_contestant("TrainPipelineBase", 2).label


def test_rates():
    assert bits_per_second("none") is None
    assert bits_per_second("1.5gbit") == 1.5e9
    assert bits_per_second("400mbit") == 4e8
    for wrong in ("1gbyte", "0gbit", "gbit", "1 gbit", ""):
        with pytest.raises(ConfigError, match="for instance 1gbit"):
            bits_per_second(wrong)


def test_ids_follow_from_the_file():
    assert [one.ids for one in workloads(BenchConfig())] == ["skewed", "uniform"]
    assert [one.ids for one in workloads(BenchConfig(criteo="x"))] == ["real", "uniform"]


def test_wrong_settings_are_refused():
    wrong = {"ids": ["real"], "models": ["dlmr"], "ranks": 0, "blocks": 0}
    for key, value in wrong.items():
        with pytest.raises(ConfigError, match=key):
            workloads(BenchConfig(**{key: value}))


def test_a_mesh_is_read():
    assert parse_mesh("2x3", 6) == (2, 3)
    with pytest.raises(ConfigError, match="for instance 6x1"):
        parse_mesh("2x2", 6)


def test_bf16_stands_for_16_bits_everywhere_in_its_place_among_other_settings():
    found = parse_contestant("window:2x1:m1:ahead:batch_size=7:bf16:seed=3", 2).settings
    assert found == ("batch_size=7", *BF16, "seed=3")
    assert len(BF16) == 3
