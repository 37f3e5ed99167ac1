"""Metrics against brute force and closed forms; cases 20 to 22: constant predictions, base rate, pooled AUC."""

from __future__ import annotations

import math

import pytest
import torch

from recpipe.errors import TrainingError
from recpipe.train.metric_window import MetricWindow
from recpipe.train.metrics import auc, evaluate, metric_sums, remarks, report


def _pair_auc(scores, labels):
    """Share of (click, no click) pairs in right order, ties half, by counting them."""
    clicks, others = scores[labels == 1], scores[labels == 0]
    right = (clicks[:, None] > others).double() + 0.5 * (clicks[:, None] == others).double()
    return right.mean().item()


def _sample(num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, generator=generator)
    labels = (torch.rand(num_rows, generator=generator) < torch.sigmoid(logits - 1)).float()
    return logits, labels


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_auc_counts_pairs_with_ties(decimals):
    logits, labels = _sample(700)
    logits = logits.round(decimals=decimals)
    assert auc(logits, labels) == pytest.approx(_pair_auc(logits, labels), abs=1e-12)
    assert auc(-logits, labels) == pytest.approx(1 - _pair_auc(logits, labels), abs=1e-12)


def test_auc_extremes():
    assert auc(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 1.0])) == 1.0
    assert auc(torch.zeros(4), torch.tensor([0.0, 1.0, 0.0, 1.0])) == 0.5
    assert math.isnan(auc(torch.empty(0), torch.empty(0)))


def test_auc_is_pooled_not_a_mean_over_batches():
    """Case 22. Two batches, each perfectly ordered, on different scales."""
    first = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])
    second = torch.tensor([10.0, 11.0]), torch.tensor([0.0, 1.0])
    assert auc(*first) == auc(*second) == 1.0
    assert auc(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])) == 0.75


def test_auc_keeps_neighbouring_floats_apart():
    near = torch.tensor([20.0, torch.nextafter(torch.tensor(20.0), torch.tensor(21.0))])
    assert torch.sigmoid(near[0]) == torch.sigmoid(near[1])
    assert auc(near, torch.tensor([0.0, 1.0])) == 1.0


def test_report_against_plain_formulas():
    logits, labels = _sample(5000)
    values = report(metric_sums(logits, labels))
    probs, y = logits.double().sigmoid(), labels.double()
    logloss = -(y * probs.log() + (1 - y) * (1 - probs).log()).mean().item()
    rate = y.mean().item()
    assert values["rows"] == 5000
    assert values["logloss"] == pytest.approx(logloss, abs=1e-12)
    assert values["ne"] == pytest.approx(logloss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)))
    assert values["calibration"] == pytest.approx((probs.sum() / y.sum()).item())
    assert values["accuracy"] == pytest.approx(((probs >= 0.5) == (y == 1)).double().mean().item())
    assert values["ctr"] == pytest.approx(rate)


def test_logloss_is_stable_at_large_logits():
    values = report(metric_sums(torch.tensor([800.0, -800.0]), torch.tensor([0.0, 0.0])))
    assert values["logloss"] == pytest.approx(400.0)


def test_sums_merge_over_splits():
    logits, labels = _sample(100)
    parts = sum(metric_sums(logits[a:b], labels[a:b]) for a, b in ((0, 1), (1, 1), (1, 60), (60, 100)))
    torch.testing.assert_close(parts, metric_sums(logits, labels), rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_reports_none_with_a_reason(label):
    logits = torch.randn(8)
    values, notes = evaluate(logits, torch.full((8,), label))
    assert values["auc"] is None and values["ne"] is None and values["logloss"] is not None
    assert any(f"all 8 labels are {label:.0f}: AUC and NE need both classes" in note for note in notes)


def test_no_labels_and_no_rows():
    for rows in (0, 3):
        values, notes = evaluate(torch.zeros(rows), torch.full((rows,), math.nan))
        assert values["auc"] is None and values["logloss"] is None and values["rows"] == 0
        assert "no row has a label" in notes[0]


def test_rows_without_a_label_are_left_out():
    logits, labels = _sample(50)
    with_gaps = torch.cat([labels, torch.full((20,), math.nan)])
    assert evaluate(torch.cat([logits, torch.randn(20)]), with_gaps) == evaluate(logits, labels)


def test_constant_predictions_are_remarked():
    """Case 20."""
    _, labels = _sample(1000)
    values, notes = evaluate(torch.full((1000,), -1.1) + 1e-5 * torch.randn(1000), labels)
    assert values["auc"] is not None and any("predictions are constant" in note for note in notes)
    assert remarks(metric_sums(*_sample(1000))) == []
    # A low click rate with a real spread is not constant.
    assert remarks(metric_sums(torch.randn(1000) - 6, labels)) == []


def test_base_rate_stands_beside_accuracy():
    """Case 21. Predicting 'no click' everywhere looks splendid by accuracy alone."""
    labels = torch.zeros(1000)
    labels[:34] = 1
    values, _ = evaluate(torch.full((1000,), -4.0), labels)
    assert values["accuracy"] == pytest.approx(0.966) and values["ctr"] == pytest.approx(0.034)
    assert values["ne"] > 1 and values["calibration"] == pytest.approx(torch.tensor(-4.0).sigmoid().item() / 0.034)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_predictions_are_an_error(bad):
    with pytest.raises(TrainingError, match="1 of 2 predictions are not finite"):
        evaluate(torch.tensor([0.0, bad]), torch.tensor([0.0, 1.0]))


def test_window_forgets_and_lifetime_does_not():
    window = MetricWindow(window_rows=40, num_buckets=4)
    logits, labels = _sample(200)
    for start in range(0, 200, 5):
        window.update(logits[start : start + 5], labels[start : start + 5], 5)
    values = window.reports()
    assert values["lifetime_rows"] == 200 and 30 <= values["window_rows"] <= 40
    seen = int(values["window_rows"])
    assert values["window_logloss"] == pytest.approx(report(metric_sums(logits[-seen:], labels[-seen:]))["logloss"])
    assert values["lifetime_ne"] == pytest.approx(report(metric_sums(logits, labels))["ne"])


def test_steps_longer_than_the_window():
    window = MetricWindow(window_rows=8, num_buckets=4)
    logits, labels = _sample(90)
    for start in range(0, 90, 30):
        window.update(logits[start : start + 30], labels[start : start + 30], 30)
    values = window.reports()
    assert values["lifetime_rows"] == 90 and values["window_rows"] == 30


def test_states_of_ranks_add_up_and_survive_a_resume_at_another_world_size():
    logits, labels = _sample(300)
    alone = MetricWindow(window_rows=60, num_buckets=3)
    ranks = [MetricWindow(window_rows=60, num_buckets=3) for _ in range(2)]
    for step, start in enumerate(range(0, 300, 10)):
        middle, stop = start + (step % 4) * 3, start + 10
        if start == 150:
            ranks = _resumed(ranks, 3)
        alone.update(logits[start:stop], labels[start:stop], 10)
        pieces = [(start, middle), (middle, stop), (stop, stop)][: len(ranks)]
        for rank, (a, b) in zip(ranks, pieces, strict=True):
            rank.update(logits[a:b], labels[a:b], 10)
    merged = torch.stack([rank.state for rank in ranks]).sum(0)
    torch.testing.assert_close(merged, alone.state)
    assert ranks[0].reports(merged) == pytest.approx(alone.reports())


def _resumed(ranks, world):
    saved = torch.stack([rank.state for rank in ranks]).sum(0)
    again = [MetricWindow(window_rows=60, num_buckets=3) for _ in range(world)]
    again[0].state.copy_(saved)
    for rank in again:
        rank.resume(ranks[0].global_rows, 60)
    return again


def test_a_window_of_another_length_begins_anew_and_the_lifetime_goes_on():
    before, after = MetricWindow(window_rows=60, num_buckets=3), MetricWindow(window_rows=30, num_buckets=3)
    before.update(*_sample(90), 90)
    after.state.copy_(before.state)
    after.resume(before.global_rows, 60)
    assert after.reports()["lifetime_rows"] == 90 and after.reports()["window_rows"] == 0
