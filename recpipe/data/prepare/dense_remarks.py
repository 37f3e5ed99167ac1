"""What a user should know of a dense column: it says nothing, its transform loses its values, or held-out rows differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recpipe.data.prepare.scale import DenseScale
from recpipe.data.prepare.spread import ColumnSpread, Spread, values_of

FEW = 20
MOSTLY, HARDLY = 0.9, 0.5
OTHER_UNIT = 50.0
CLOSE = 1e-3


def dense_remarks(name: str, scale: DenseScale, spread: ColumnSpread) -> Iterator[str]:
    """Warnings about one dense column.

    Args:
        name: of the column.
        scale: how it is stored.
        spread: what was measured of it.
    """
    train, held_out = spread.train, spread.held_out
    if not train.count:
        yield f"dense column {name} has no value in training rows: it says nothing"
        return
    if train.low == train.high and not train.missing:
        yield f"dense column {name} is {train.low:,g} in every training row: it says nothing"
    share = merged_share(scale, train)
    if share > HARDLY:
        advice = (
            "" if scale.transform == "standardize" else f"; data.transforms={{{name}: standardize}} keeps them apart"
        )
        yield (
            f"dense column {name}: the transform {scale.transform} maps {share:.0%} of its differing training values "
            f"to nearly one value (they lie in {train.low:,g} to {train.high:,g}){advice}"
        )
    yield from _held_out(name, train, held_out)


def merged_share(scale: DenseScale, train: Spread) -> float:
    """Share of the values, the most frequent one left out, that a transform does not tell from many others."""
    if train.low == train.high:
        return 0.0
    ends = scale.of(np.array([train.low, train.high]))
    if abs(ends[1] - ends[0]) < CLOSE * max(1.0, abs(float(ends[1]))):
        return 1.0
    used = np.flatnonzero(train.bins)
    counts = train.bins[used]
    _, group = np.unique(scale.of(values_of(used).clip(train.low, train.high)), return_inverse=True)
    totals = np.bincount(group, weights=counts)
    largest = np.zeros(len(totals))
    np.maximum.at(largest, group, counts)
    differing = train.count - int(counts.max())
    return float((totals - largest).max()) / differing if differing else 0.0


def _held_out(name: str, train: Spread, held_out: Spread) -> Iterator[str]:
    """Held-out rows beside training rows."""
    if held_out.count + held_out.missing < FEW:
        return
    if held_out.missing_share >= MOSTLY and train.missing_share <= HARDLY:
        shares = f"{held_out.missing_share:.0%} of held-out rows, in {train.missing_share:.0%} of training rows"
        yield f"dense column {name} is missing in {shares}"
        return
    if held_out.count < FEW:
        return
    width = train.high - train.low
    outside = held_out.share_outside(train.low - width, train.high + width)
    ends = f"training values lie in {train.low:,g} to {train.high:,g}"
    if outside > HARDLY:
        yield (
            f"dense column {name}: {outside:.0%} of held-out values are far outside of those of training rows ({ends}, "
            f"held-out ones in {held_out.low:,g} to {held_out.high:,g}); is the unit the same?"
        )
    elif train.count >= FEW and not 1 / OTHER_UNIT < _ratio(_bulk(held_out), _bulk(train)) < OTHER_UNIT:
        after, before = (f"{one.quantile(0.05):,g} to {one.quantile(0.95):,g}" for one in (held_out, train))
        yield (
            f"dense column {name}: most held-out values lie in {after}, most training values in {before}; is the unit the same?"
        )


def _ratio(one: float, other: float) -> float:
    """Of two widths; 1 where one of them cannot be told."""
    return one / other if one > 0 and other > 0 else 1.0


def _bulk(spread: Spread) -> float:
    """Width of the middle of the values."""
    return spread.quantile(0.95) - spread.quantile(0.05)
