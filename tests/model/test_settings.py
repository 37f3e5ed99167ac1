"""Settings of models: the shipped files, the MLPerf shape, and messages for settings that do not fit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recpipe.errors import ConfigError
from recpipe.model import build_model
from recpipe.model.config import (
    SCHEMAS,
    DcnV2Config,
    DeepFmConfig,
    DlrmConfig,
    FeatureTransformerConfig,
    ModelConfig,
    WukongConfig,
)
from recpipe.specs import Feature, Schema
from tests.model.small import small_schema

CONF = Path(__file__).parents[2] / "conf" / "model"


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_shipped_file_fits_its_schema_and_builds(name):
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    settings.pop("defaults", None)
    known = {field.name for field in dataclasses.fields(SCHEMAS[name])}
    assert settings["name"] == name and set(settings) <= known
    build_model(SCHEMAS[name](**settings), small_schema(), device="meta")


def test_every_shipped_file_has_a_schema():
    assert {path.stem for path in CONF.glob("*.yaml")} == set(SCHEMAS)


def test_settings_are_read_without_torch():
    code = "import sys, recpipe.model.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mlperf_shape():
    cfg = DcnV2Config(
        embedding_dim=128,
        dense_arch_layer_sizes=[512, 256, 128],
        over_arch_layer_sizes=[1024, 1024, 512, 256, 1],
        structure="stacked",
        dcn_num_layers=3,
        dcn_low_rank_dim=512,
    )
    schema = Schema(13, tuple(Feature(f"cat_{i}", 40_000_000) for i in range(26)))
    model = build_model(cfg, schema, device="meta")
    width, rank = 27 * 128, 512
    dense = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    cross = 3 * (2 * width * rank + width)
    over = width * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 256 + 1
    assert sum(parameter.numel() for parameter in model.parameters()) == dense + cross + over
    assert [table.name for table in model.tables][:2] == ["t_cat_0", "t_cat_1"] and model.row_dim == 128


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (
            DlrmConfig(dense_arch_layer_sizes=[32, 8]),
            r"ends in 8, but the model has model\.embedding_dim=16.*\[32, 16\]",
        ),
        (DlrmConfig(over_arch_layer_sizes=[32, 8]), r"over_arch_layer_sizes=\[32, 8\] ends in 8.*\[32, 8, 1\]"),
        (DlrmConfig(over_arch_layer_sizes=[]), r"over_arch_layer_sizes=\[\]: at least one"),
        (DlrmConfig(over_arch_layer_sizes=[0, 1]), "layer sizes must be at least 1"),
        (DlrmConfig(interaction_type="orignal"), "interaction_type=orignal: unknown; did you mean original"),
        (DlrmConfig(embedding_dim=18), r"embedding_dim=18: .*multiple of 4 floats; use model\.embedding_dim=20"),
        (DcnV2Config(structure="stack"), "did you mean stacked"),
        (DcnV2Config(dcn_num_layers=0), "dcn_num_layers=0: must be at least 1"),
        (DcnV2Config(dcn_low_rank_dim=-1), "dcn_low_rank_dim=-1: must be at least 0"),
        (DcnV2Config(dense_arch_layer_sizes=[8]), "make the last size equal to it"),
        (DeepFmConfig(dropout=1.0), r"dropout=1\.0: must be at least 0 and below 1"),
        (DeepFmConfig(row_init="norml"), "row_init=norml: unknown; did you mean normal"),
        (WukongConfig(fm_rank=0), "fm_rank=0"),
        (WukongConfig(fm_arch_layer_sizes=[0]), "fm_arch_layer_sizes"),
        (FeatureTransformerConfig(num_heads=3), "num_heads=3 does not divide"),
        (ModelConfig("dlmr"), "name=dlmr: unknown; did you mean dlrm"),
    ],
)
def test_settings_that_do_not_fit(cfg, message):
    with pytest.raises(ConfigError, match=message):
        build_model(cfg, small_schema(), device="meta")


def test_data_without_features_is_refused():
    with pytest.raises(ConfigError, match="no categorical feature"):
        build_model(DlrmConfig(), Schema(3, ()), device="meta")
