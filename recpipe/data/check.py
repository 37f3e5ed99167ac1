"""The checked builder: nothing malformed, out of range or non-finite passes from here to a model.

What every batch goes through is numpy on the tensors' memory: torch would start its thread pool for arrays this small.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from recpipe.batch import Batch
from recpipe.data.config import BAD_ID_POLICIES, NON_FINITE_POLICIES
from recpipe.errors import ConfigError, DataError, nearest
from recpipe.specs import Schema

OOV_ID = 1
HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass
class Policy:
    """What to do with bad values, and how often it was done.

    Args:
        bad_ids: error, clamp (nearest valid id), hash (scrambled into the table), oov (id 1), drop (out of its bag).
        non_finite: error, or drop the row.
        bad_id_counts: bad ids met so far, by feature.
        dropped_rows: rows dropped so far.
    """

    bad_ids: str = "error"
    non_finite: str = "error"
    bad_id_counts: dict[str, int] = field(default_factory=dict)
    dropped_rows: int = 0

    def __post_init__(self) -> None:
        if self.bad_ids not in BAD_ID_POLICIES:
            raise ConfigError(f"data.bad_ids={self.bad_ids} is unknown; {nearest(self.bad_ids, BAD_ID_POLICIES)}")
        if self.non_finite not in NON_FINITE_POLICIES:
            known = nearest(self.non_finite, NON_FINITE_POLICIES)
            raise ConfigError(f"data.non_finite={self.non_finite} is unknown; {known}")


def check_batch(batch: Batch, schema: Schema, policy: Policy) -> Batch:
    """The same batch when all is well; a repaired one, or an error, when something is not.

    Args:
        batch: rows of one rank.
        schema: what the batch should look like.
        policy: what to do with bad ids and non-finite values; its counters go up.

    Raises:
        DataError: a wrong shape or label, or a bad value under the policy `error`.
    """
    _check_shapes(batch, schema)
    _check_labels(batch)
    return _repair_ids(_drop_non_finite(batch, schema, policy), schema, policy)


def _check_shapes(batch: Batch, schema: Schema) -> None:
    """Every tensor has the size that the others imply."""
    rows, features, ids = batch.num_rows, len(schema.features), batch.ids_N.numel()
    expected = {
        "dense": (tuple(batch.dense_BD.shape), (rows, schema.num_dense)),
        "lengths": (tuple(batch.lengths_FB.shape), (features * rows,)),
    }
    if batch.weights_N is not None:
        expected["weights"] = (tuple(batch.weights_N.shape), (ids,))
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise DataError(
                f"malformed batch: {name} has shape {found}, expected {wanted} "
                f"({rows} rows, {features} features, {schema.num_dense} dense columns, {ids} ids)"
            )
    _check_lengths(batch, schema)


def _check_lengths(batch: Batch, schema: Schema) -> None:
    """Lengths are counts, add up to the ids, and are 1 where the batch says so."""
    lengths, ids = batch.lengths_FB.numpy(), batch.ids_N.numel()
    if lengths.size and lengths.min() < 0:
        at = int(np.flatnonzero(lengths < 0)[0])
        raise DataError(f"malformed batch: length {lengths[at]} at {_place(batch, schema, at)}; lengths are counts")
    total = int(lengths.sum(dtype=np.int64))
    if total != ids:
        raise DataError(f"malformed batch: lengths add up to {total} but there are {ids} ids")
    if batch.one_hot and lengths.size and lengths.max() != 1:
        at = int(np.flatnonzero(lengths != 1)[0])
        place = _place(batch, schema, at)
        raise DataError(f"malformed batch: one_hot, yet length {int(lengths[at])} at {place}")


def _check_labels(batch: Batch) -> None:
    """Labels are 0, 1, or NaN where a file had none."""
    labels = batch.labels_B.numpy()
    bad = ~((labels == 0) | (labels == 1) | np.isnan(labels))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(f"label {float(labels[row])} in row {batch.first_row + row} is neither 0 nor 1")


def _drop_non_finite(batch: Batch, schema: Schema, policy: Policy) -> Batch:
    """Stop at a non-finite dense value or id weight, or drop its row."""
    bad = torch.from_numpy(~np.isfinite(batch.dense_BD.numpy()).all(axis=1))
    if batch.weights_N is not None and not np.isfinite(batch.weights_N.numpy()).all():
        at = torch.nonzero(~torch.isfinite(batch.weights_N)).flatten()
        bag = _bag_of(batch)[at]
        if policy.non_finite == "error":
            place = _place(batch, schema, int(bag[0]))
            raise DataError(f"weight {float(batch.weights_N[at[0]])} at {place}; data.non_finite=drop drops such rows")
        bad[bag % batch.num_rows] = True
    if not bad.numpy().any():
        return batch
    if policy.non_finite == "error":
        row = int(torch.nonzero(bad)[0])
        column = int(torch.nonzero(~torch.isfinite(batch.dense_BD[row]))[0])
        raise DataError(
            f"dense value {float(batch.dense_BD[row, column])} in row {batch.first_row + row}, "
            f"dense column {column}; data.non_finite=drop drops such rows"
        )
    policy.dropped_rows += int(bad.sum())
    return keep_rows(batch, ~bad)


def keep_rows(batch: Batch, keep_B: torch.Tensor) -> Batch:
    """Only the rows where `keep_B` is true; the others are counted in `num_dropped`."""
    features = batch.lengths_FB.numel() // max(batch.num_rows, 1)
    keep_bags = keep_B.repeat(features)
    keep_N = keep_bags.repeat_interleave(batch.lengths_FB)
    return replace(
        batch,
        dense_BD=batch.dense_BD[keep_B],
        ids_N=batch.ids_N[keep_N],
        lengths_FB=batch.lengths_FB[keep_bags],
        labels_B=batch.labels_B[keep_B],
        weights_N=None if batch.weights_N is None else batch.weights_N[keep_N],
        num_dropped=batch.num_dropped + int((~keep_B).sum()),
    )


def _repair_ids(batch: Batch, schema: Schema, policy: Policy) -> Batch:
    """Apply the bad-id policy; the common case costs one pass over all ids."""
    if batch.num_rows == 0 or not schema.features:
        return batch
    sizes = np.array([feature.num_ids for feature in schema.features])
    ids, num_features = batch.ids_N.numpy(), len(sizes)
    if batch.one_hot:
        grid = ids.reshape(num_features, -1)
        if grid.min() >= 0 and (grid.max(axis=1) < sizes).all():
            return batch
    size_N = np.repeat(sizes, batch.lengths_FB.numpy().reshape(num_features, -1).sum(axis=1))
    bad = (ids < 0) | (ids >= size_N)
    if not bad.any():
        return batch
    return _apply(batch, schema, policy, torch.from_numpy(bad), torch.from_numpy(size_N))


def _apply(batch: Batch, schema: Schema, policy: Policy, bad: torch.Tensor, size_N: torch.Tensor) -> Batch:
    """Error, or count the bad ids by feature and replace or drop them."""
    at = torch.nonzero(bad).flatten()
    bag = _bag_of(batch)[at]
    if policy.bad_ids == "error":
        feature = schema.features[int(bag[0]) // batch.num_rows]
        raise DataError(
            f"id {int(batch.ids_N[at[0]])} at {_place(batch, schema, int(bag[0]))} is outside [0, {feature.num_ids}); "
            f"choose data.bad_ids={'|'.join(BAD_ID_POLICIES[1:])} to go on"
        )
    _count(bag // batch.num_rows, schema, policy)
    if policy.bad_ids == "drop":
        return _drop_ids(batch, ~bad, bag)
    ids = batch.ids_N.clone()
    ids[at] = _replacement(ids[at], size_N[at], policy.bad_ids)
    return replace(batch, ids_N=ids)


def _replacement(ids: torch.Tensor, sizes: torch.Tensor, policy: str) -> torch.Tensor:
    """Valid ids for bad ones under clamp, hash or oov."""
    if policy == "clamp":
        return torch.minimum(ids.clamp(min=0), sizes - 1)
    if policy == "hash":
        mixed = ids * HASH_MULTIPLIER
        return ((mixed ^ (mixed >> 29)) & 0x7FFFFFFFFFFFFFFF) % sizes
    return torch.minimum(torch.full_like(ids, OOV_ID), sizes - 1)


def _drop_ids(batch: Batch, keep_N: torch.Tensor, bag: torch.Tensor) -> Batch:
    """Take bad ids out of their bags; the rows stay."""
    lengths = batch.lengths_FB.clone()
    lengths.index_add_(0, bag, torch.full_like(bag, -1, dtype=lengths.dtype))
    weights = None if batch.weights_N is None else batch.weights_N[keep_N]
    return replace(batch, ids_N=batch.ids_N[keep_N], lengths_FB=lengths, weights_N=weights, one_hot=False)


def _count(feature: torch.Tensor, schema: Schema, policy: Policy) -> None:
    """Add these bad ids to the policy's counters."""
    for number, count in enumerate(torch.bincount(feature, minlength=len(schema.features)).tolist()):
        if count:
            name = schema.features[number].name
            policy.bad_id_counts[name] = policy.bad_id_counts.get(name, 0) + count


def _bag_of(batch: Batch) -> torch.Tensor:
    """The bag (feature * rows + row) of each id."""
    return torch.arange(batch.lengths_FB.numel()).repeat_interleave(batch.lengths_FB)


def _place(batch: Batch, schema: Schema, bag: int) -> str:
    """Feature and row of a bag, for a message."""
    feature, row = divmod(bag, max(batch.num_rows, 1))
    return f"feature {schema.features[feature].name}, row {batch.first_row + row}"
