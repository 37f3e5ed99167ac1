"""Metrics of click predictions: AUC from pooled scores; log loss, NE, calibration and the rest from sums that merge.

AUC is never a mean of AUCs: whoever calls :func:`auc` passes the scores of all rows of all ranks. Everything else
follows from the sums of :func:`metric_sums`, float64 ``[S]``, which may be added over batches and ranks and saved.
"""

from __future__ import annotations

import math

import torch

from recpipe.errors import TrainingError

SUM_NAMES = ("rows", "loss", "predictions", "squared_predictions", "clicks", "correct")
CONSTANT_SPREAD = 1e-3
Report = dict[str, float | None]


def metric_sums(logits_B: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
    """Sums over rows in the order of ``SUM_NAMES``, float64 ``[S]`` on CPU. Rows without a label (NaN) are left out.

    Raises:
        TrainingError: a logit is not finite.
    """
    logits_B, labels_B = _labelled(logits_B, labels_B)
    probs_B = torch.sigmoid(logits_B)
    loss_B = logits_B.clamp_min(0) - logits_B * labels_B + torch.log1p(torch.exp(-logits_B.abs()))
    correct_B = (logits_B >= 0) == (labels_B > 0.5)
    columns = (torch.ones_like(logits_B), loss_B, probs_B, probs_B.square(), labels_B, correct_B.double())
    return torch.stack([column.sum() for column in columns]).cpu()


def auc(logits_N: torch.Tensor, labels_N: torch.Tensor) -> float:
    """Area under the ROC curve over all rows given, exact, ties counted half; NaN unless both classes occur.

    Args:
        logits_N: scores of any monotone scale; pass them in the precision they were computed in.
        labels_N: 0, 1, or NaN for rows to leave out.

    Raises:
        TrainingError: a score is not finite.
    """
    logits_N, labels_N = _labelled(logits_N, labels_N)
    order_N = torch.argsort(logits_N)
    sorted_N = logits_N[order_N]
    clicks_N = (labels_N[order_N] > 0.5).long().cumsum(0)
    last_of_tie_N = torch.ones(len(sorted_N), dtype=torch.bool, device=sorted_N.device)
    last_of_tie_N[:-1] = sorted_N[1:] != sorted_N[:-1]
    ends_G = last_of_tie_N.nonzero().squeeze(1)
    clicks_G = clicks_N[ends_G]
    others_G = ends_G + 1 - clicks_G
    num_clicks, num_others = (int(clicks_G[-1]), int(others_G[-1])) if len(ends_G) else (0, 0)
    if not num_clicks or not num_others:
        return math.nan
    clicks_in_G = clicks_G.diff(prepend=clicks_G.new_zeros(1))
    # Twice the pairs in right order, so that half counts stay integers.
    others_below_G = others_G + torch.cat([others_G.new_zeros(1), others_G[:-1]])
    return int((clicks_in_G * others_below_G).sum()) / (2 * num_clicks * num_others)


def report(sums_S: torch.Tensor) -> Report:
    """Metrics of summed rows; None where the rows do not define one.

    ``logloss`` in nats a row; ``ne`` log loss over the entropy of the base rate (1: no better than predicting it);
    ``calibration`` predictions over clicks; ``ctr`` the base rate, without which ``accuracy`` says little.
    """
    sums = dict(zip(SUM_NAMES, sums_S.tolist(), strict=True))
    rows = sums["rows"]
    if not rows:
        return {"rows": 0.0, **dict.fromkeys(("logloss", "ne", "calibration", "accuracy", "ctr"))}
    ctr, logloss = sums["clicks"] / rows, sums["loss"] / rows
    entropy = -(ctr * math.log(ctr) + (1 - ctr) * math.log(1 - ctr)) if 0 < ctr < 1 else 0.0
    return {
        "rows": rows,
        "logloss": logloss,
        "ne": logloss / entropy if entropy else None,
        "calibration": sums["predictions"] / sums["clicks"] if sums["clicks"] else None,
        "accuracy": sums["correct"] / rows,
        "ctr": ctr,
    }


def evaluate(logits_N: torch.Tensor, labels_N: torch.Tensor) -> tuple[Report, list[str]]:
    """All metrics of the pooled rows of a split, ``auc`` first, and remarks a user has to see.

    Raises:
        TrainingError: a logit is not finite.
    """
    sums_S = metric_sums(logits_N, labels_N)
    area = auc(logits_N, labels_N)
    return {"auc": None if math.isnan(area) else area, **report(sums_S)}, remarks(sums_S)


def remarks(sums_S: torch.Tensor) -> list[str]:
    """Why a metric is missing, and a warning when predictions hardly differ."""
    sums = dict(zip(SUM_NAMES, sums_S.tolist(), strict=True))
    rows, clicks = sums["rows"], sums["clicks"]
    if not rows:
        return ["no row has a label: there is nothing to measure"]
    notes = []
    if clicks in (0.0, rows):
        notes.append(f"all {rows:.0f} labels are {int(clicks > 0)}: AUC and NE need both classes")
    mean = sums["predictions"] / rows
    spread = math.sqrt(max(sums["squared_predictions"] / rows - mean**2, 0.0))
    if rows > 1 and spread < CONSTANT_SPREAD * min(mean, 1 - mean):
        notes.append(
            f"predictions are constant (mean {mean:.6g}, standard deviation {spread:.1g} over {rows:.0f} rows): the "
            f"model has learnt nothing but a rate; check the learning rates, the labels and that rows are trained"
        )
    return notes


def _labelled(logits_N: torch.Tensor, labels_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 logits and labels of the rows that have a label."""
    assert logits_N.shape == labels_N.shape and logits_N.dim() == 1, f"{logits_N.shape} logits, {labels_N.shape} labels"
    has_label_N = ~torch.isnan(labels_N)
    logits_N, labels_N = logits_N.detach()[has_label_N].double(), labels_N[has_label_N].double()
    num_bad = len(logits_N) - int(torch.isfinite(logits_N).sum())
    if num_bad:
        raise TrainingError(
            f"{num_bad} of {len(logits_N)} predictions are not finite: training diverged; lower the learning rates, or "
            f"check dense values and L2"
        )
    return logits_N, labels_N
