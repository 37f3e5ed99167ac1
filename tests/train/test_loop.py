"""Training as a whole: every row once in its own role, checkpoints at other world sizes, failures that say what happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recpipe.comm import Groups
from recpipe.errors import CheckpointError, ConfigError, TrainingError
from recpipe.train import checkpoint
from recpipe.train.checkpoint_manifest import check_folder
from recpipe.train.evaluate import score_split
from recpipe.train.feed import Feed
from recpipe.train.loop import TrainingLoop
from recpipe.train.lr import LrPolicy
from recpipe.train.mesh import Mesh
from recpipe.train.report import Reporter
from recpipe.train.run_dir import make_run_dir
from recpipe.train.setup import build_job
from recpipe.train.state import check_schema, everything, weights
from tests.ranks import run_ranks
from tests.train.jobs import small_config
from tests.train.resuming import run


def train(rank, world, cfg, folder, saved_name=None):
    """Trains; gives losses of the validation, the rows trained and the final weights of this rank."""
    job = build_job(cfg, Groups.create())
    loop = TrainingLoop(job, Path(folder), "")
    with Reporter(Path(folder) if rank == 0 else None, loop.total_steps, "none", False) as reporter:
        loop.run(reporter)
    if saved_name:
        loop.save(saved_name)
    tensors = {name: v.clone() for name, v in everything(job.trainer).items() if isinstance(v, torch.Tensor)}
    for name, entry in job.tables.entries().items():
        for piece in entry.pieces:
            tensors[f"{name}{piece.offsets}"] = piece.tensor.clone()
    return {"rows": loop.clock.all_rows, "tensors": tensors, "valid": loop.best.report}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("world", [1, 3])
def test_validation_inside_an_epoch_changes_nothing(tmp_path, world):
    plain = run_ranks(train, world, small_config(world, epochs=2), tmp_path)
    often = run_ranks(train, world, small_config(world, epochs=2, validation_freq_within_epoch=2), tmp_path)
    assert plain[0]["rows"] == often[0]["rows"] == 2 * (8 * world * 4 + 2)
    for ours, theirs in zip(plain, often, strict=True):
        assert_equal(ours["tensors"], theirs["tensors"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["split"] == "valid" for line in lines) >= 6


def test_the_same_run_twice_is_the_same_to_the_bit(tmp_path):
    cfg = small_config(2, model__dropout=0.5, tables__sharding="row_wise")
    first, second = (run_ranks(train, 2, cfg, tmp_path)[1]["tensors"] for _ in range(2))
    assert_equal(first, second)


def test_fewer_rows_than_ranks_trains_each_once(tmp_path):
    results = run_ranks(train, 4, small_config(4, data__num_train=3), tmp_path)
    assert [result["rows"] for result in results] == [3] * 4
    assert all(torch.isfinite(t).all() for t in results[3]["tensors"].values())


def lose_a_batch(loop):
    plain = loop._batches
    loop._batches = lambda feed: (batch for number, batch in enumerate(plain(feed)) if number != 1)


def test_rows_that_were_not_trained_are_an_error(tmp_path):
    with pytest.raises(Exception, match="epoch 0 trained 50 rows of 66"):
        run(2, small_config(2, run__dir=str(tmp_path)), break_it=lose_a_batch)


def save_and_score(rank, world, cfg, folder):
    train(rank, world, cfg, folder, "final")
    return None


def load_and_score(rank, world, cfg, folder):
    job = build_job(cfg, Groups.create())
    checkpoint.load(Path(folder) / "checkpoints" / "final", weights(job.trainer), job.groups)
    return score_split(job.trainer, job.dataset, "test", job.groups, 7, None)


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise", "replicated"])
def test_a_checkpoint_scores_the_same_on_any_ranks_and_placement(tmp_path, sharding):
    cfg = small_config(2, dtype="float64", tables__sharding=sharding, optimizer__table__name="rowwise_adagrad")
    run_ranks(save_and_score, 2, cfg, tmp_path)
    expected = run_ranks(load_and_score, 2, cfg, tmp_path)[0]
    assert expected[0].numel() == 41
    for world, other in ((1, "table_wise"), (3, "row_wise"), (4, "column_wise")):
        got = run_ranks(load_and_score, world, small_config(2, dtype="float64", tables__sharding=other), tmp_path)
        for logits, labels in got:
            torch.testing.assert_close(logits, expected[0], atol=1e-12, rtol=1e-12)
            assert torch.equal(labels, expected[1])


def test_a_pooled_run_loads_into_a_window_run(tmp_path):
    settings = {"optimizer__table__name": "rowwise_adagrad", "tables__sharding": "row_wise"}
    run_ranks(save_and_score, 2, small_config(2, exchange__kind="pooled", **settings), tmp_path)
    pooled = run_ranks(load_and_score, 2, small_config(2, exchange__kind="pooled", **settings), tmp_path)[0]
    window = run_ranks(load_and_score, 2, small_config(2, **settings), tmp_path)[0]
    torch.testing.assert_close(window[0], pooled[0], atol=1e-6, rtol=1e-6)


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    run_ranks(save_and_score, 1, small_config(1), tmp_path)
    with pytest.raises(Exception, match=r"does not fit this model.*[Ss]ize mismatch"):
        run_ranks(load_and_score, 1, small_config(1, model__over_arch_layer_sizes=[8, 1]), tmp_path)


def test_a_truncated_checkpoint_is_called_damaged(tmp_path):
    run_ranks(save_and_score, 1, small_config(1), tmp_path)
    file = tmp_path / "checkpoints" / "final" / "weights" / "rank_0.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(Exception, match=r"rank_0.safetensors: is cut short or grown: 1000 bytes"):
        run_ranks(load_and_score, 1, small_config(1), tmp_path)


def test_no_checkpoint_there(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        check_folder(tmp_path / "missing")
    run_ranks(save_and_score, 1, small_config(1), tmp_path)
    with pytest.raises(CheckpointError, match=r"did you mean .*final"):
        check_folder(tmp_path)


def test_other_columns_are_refused_with_all_differences(tmp_path):
    from recpipe.specs import Feature, Schema

    saved = Schema(2, (Feature("a", 5), Feature("b", 3)))
    with pytest.raises(CheckpointError, match=r"dense columns.*b is missing.*c is not in.*a: 5 ids .* 6 in"):
        check_schema(saved, Schema(3, (Feature("a", 6), Feature("c", 3))))


def test_a_loss_that_is_not_finite_stops_before_anything_is_updated(tmp_path):
    message, untouched = run_ranks(diverge, 1, small_config(1), tmp_path)[0]
    assert "the loss is nan at step 0, rows 0 to" in message
    assert untouched


def diverge(rank, world, cfg, folder):
    job = build_job(cfg, Groups.create())
    with torch.no_grad():
        next(job.model.parameters()).fill_(float("nan"))
    before = [p.tensor.clone() for e in job.tables.entries().values() for p in e.pieces]
    loop = TrainingLoop(job, Path(folder), "")
    with pytest.raises(TrainingError) as caught, Reporter(None, loop.total_steps, "none", False) as reporter:
        loop.run(reporter)
    after = [p.tensor for e in job.tables.entries().values() for p in e.pieces]
    return str(caught.value), all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def early(rank, world, cfg, folder):
    result = train(rank, world, cfg, folder)
    return result["valid"], sorted(p.name for p in Path(folder, "checkpoints").iterdir()), result["rows"]


def test_early_stopping_keeps_the_best_weights_only(tmp_path):
    cfg = small_config(2, epochs=30, early_stopping__patience=2, optimizer__dense__learning_rate=0.05)
    _, kept, rows = run_ranks(early, 2, cfg, tmp_path)[0]
    assert len(kept) == 1 and kept[0].startswith("best-")
    assert rows < 30 * 66


def directories(rank, world, cfg):
    return str(make_run_dir(cfg, "train", Groups.create()))


def test_rank_0_alone_makes_the_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_ranks(directories, 3, small_config(3))
    assert len(set(names)) == 1
    assert len(list((tmp_path / "runs" / "train").iterdir())) == 1


def test_a_run_directory_with_files_is_refused(tmp_path):
    (tmp_path / "old.txt").write_text("x")
    with pytest.raises(Exception, match="holds files; choose another directory"):
        run_ranks(directories, 1, small_config(1, run__dir=str(tmp_path)))


def test_overwriting_replaces_an_earlier_run_and_nothing_else(tmp_path):
    for name in (".recpipe-run", "metrics.jsonl", "notes.txt"):
        (tmp_path / name).write_text("old")
    (tmp_path / "checkpoints" / "best-3").mkdir(parents=True)
    run_ranks(directories, 1, small_config(1, run__dir=str(tmp_path), run__overwrite=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".recpipe-run", "notes.txt"]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("dtype", "float16", "dtype=float16"),
        ("batch_size", 0, "batch_size=0"),
        ("mesh.stages", 3, "does not divide"),
        ("optimizer.dense.learning_rate", -1.0, "must not be negative"),
    ],
)
def test_settings_are_checked_before_anything_is_opened(setting, value, message):
    with pytest.raises(Exception, match=message):
        run_ranks(build_only, 1, small_config(1, **{setting.replace(".", "__"): value}))


def build_only(rank, world, cfg):
    build_job(cfg, Groups.create())


def test_feed_deals_every_row_once():
    for rows, batch, replicas in ((130, 8, 4), (3, 8, 4), (64, 8, 2), (1, 1, 5), (0, 4, 2)):
        feed = Feed(rows, batch, replicas)
        spans = [feed.share(step, r) for step in range(feed.num_steps) for r in range(replicas)]
        assert [row for start, stop in spans for row in range(start, stop)] == list(range(rows))
        assert all(stop - start <= batch for start, stop in spans)
    assert Feed(130, 8, 4, drop_last=True).num_used_rows == 128
    assert Feed(130, 8, 4, limit=2).num_used_rows == 64


def test_learning_rate_policy():
    policy = LrPolicy(warmup_steps=4, decay_start=10, decay_steps=4)
    factors = [policy.factor(step) for step in range(16)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:11] == [1.0] * 7
    assert factors[11:] == [0.5625, 0.25, 0.0625, 0.0625, 0.0625]


def test_mesh():
    assert Mesh.create(8, 2, None) == Mesh(stages=2, replicas=4)
    with pytest.raises(ConfigError, match=r"leave mesh.replicas out"):
        Mesh.create(8, 2, 3)
    with pytest.raises(ConfigError, match=r"does not divide"):
        Mesh.create(8, 3, None)
