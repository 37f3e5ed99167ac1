"""Pipelines against the single-process reference: every synchronous family, meshes, models, uneven microbatches."""

from __future__ import annotations

import pytest

from tests.train.jobs import verify

F64 = {"dtype": "float64", "optimizer__table__name": "rowwise_adagrad", "launch__threads": 1}
FAMILIES = [
    "gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb", "zbv", "chimera", "dualpipe",
    "dualpipev", "cyclic", "greedy", "auto",
]  # fmt: skip
DEEP = {"model__over_arch_layer_sizes": [16, 12, 12, 8, 8, 8, 1]}


def assert_same(differences, tolerance=1e-12):
    assert max(differences.values()) <= tolerance, differences


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_two_stages(family):
    assert_same(verify(2, **F64, **DEEP, schedule__name=family, mesh__stages=2))


@pytest.mark.parametrize("family", ["1f1b", "interleaved", "zb_h1", "zbv", "chimera", "dualpipe"])
def test_families_on_four_stages(family):
    assert_same(verify(4, **F64, **DEEP, schedule__name=family, mesh__stages=4, schedule__chunks=2))


@pytest.mark.parametrize("family", ["1f1b", "zb_h1", "chimera", "dualpipe"])
def test_families_on_two_replicas_of_two_stages(family):
    assert_same(verify(4, **F64, **DEEP, schedule__name=family, mesh__stages=2))
