"""Partition against all partitions, and cuts by hand."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
import torch

from recpipe.errors import ConfigError
from recpipe.model import build_model, partition_by_cost, partition_by_name
from recpipe.model.config import DcnV2Config
from tests.model.small import small_schema


def _best(costs, num_stages, cut_costs):
    def score(starts):
        bounds = (0, *starts, len(costs))
        worst = max(sum(costs[a:b]) for a, b in pairwise(bounds))
        return worst, sum(cut_costs[start] for start in starts)

    return min(score(starts) for starts in combinations(range(1, len(costs)), num_stages - 1))


def test_exact_against_all_partitions():
    generator = random.Random(0)
    for _ in range(300):
        num_blocks = generator.randint(1, 9)
        num_stages = generator.randint(1, num_blocks)
        costs = [generator.choice([0, 1, 2, 3, 5, 50]) for _ in range(num_blocks)]
        cut_costs = [generator.randint(0, 9) for _ in range(num_blocks)]
        stages = partition_by_cost(costs, num_stages, cut_costs)
        assert [block for stage in stages for block in stage] == list(range(num_blocks))
        assert len(stages) == num_stages and all(len(stage) for stage in stages)
        worst = max(sum(costs[block] for block in stage) for stage in stages)
        assert (worst, sum(cut_costs[stage.start] for stage in stages[1:])) == _best(costs, num_stages, cut_costs)


def test_more_stages_than_blocks_is_refused():
    with pytest.raises(ConfigError, match=r"mesh\.stages=4: the model has 3 blocks"):
        partition_by_cost([1, 1, 1], 4)


def test_by_name():
    model = build_model(DcnV2Config(), small_schema(), device="meta")
    blocks = list(model.blocks)
    assert partition_by_name(blocks, ["cross_1", "over_0"]) == (range(0, 2), range(2, 4), range(4, 7))
    with pytest.raises(ConfigError, match="cros_1: the model has no such block; did you mean cross_1"):
        partition_by_name(blocks, ["cros_1"])
    for wrong in (["over_0", "cross_1"], ["join"], ["over_0", "over_0"]):
        with pytest.raises(ConfigError, match="stage cuts before"):
            partition_by_name(blocks, wrong)


def test_counted_operations():
    model = build_model(DcnV2Config(embedding_dim=4, over_arch_layer_sizes=[8, 1]), small_schema(), dtype=torch.float64)
    names = [block.name for block in model.blocks]
    flops = dict(zip(names, model.row_flops, strict=True))
    assert flops["cross_0"] == 2 * 16 * 16 and flops["over_0"] == 2 * 16 * 8 and flops["logits"] == 2 * 24
