"""How many values of some rows have no id, beside what training rows let expect; and the words for it.

A value that a vocabulary does not know gets the id of unseen values. Some of them are normal: in training rows themselves, a
value that occurs too rarely would be unseen if it were left out (`expected_unseen` of a feature's counts). Far more than that
mean that values are written in another way: `7.0` for `7`, other letters, another hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

FAR = 0.25
SURE = 3.0
MOST_SAID = 8


@dataclass(frozen=True)
class UnseenShare:
    """Unseen values of one feature in some rows.

    Args:
        feature: its name.
        expected: share of values without an id that training rows let expect.
        values: values of the rows, missing ones left out.
        unseen: those of them without an id.
        example: a clause that shows one; may be empty.
    """

    feature: str
    expected: float
    values: int
    unseen: int
    example: str = ""

    @property
    def share(self) -> float:
        """Share of the values without an id; 0 where there are no values."""
        return self.unseen / max(1, self.values)

    @property
    def is_far(self) -> bool:
        """There are many more than expected, and not by chance."""
        surplus = self.unseen - self.expected * self.values
        chance = sqrt(self.values * self.expected * (1.0 - self.expected) + 1.0)
        return self.share - self.expected > FAR and surplus > SURE * chance


def unseen_shares(
    features: Sequence[Mapping[str, Any]],
    ids: Sequence[int],
    missing: Sequence[int],
    rare: Sequence[int],
    examples: Mapping[str, str] | None = None,
) -> list[UnseenShare]:
    """The share of every feature whose vocabulary was counted.

    Args:
        features: the `features` of the manifest that has the vocabularies.
        ids, missing, rare: by feature: ids of the rows, how many are 0, how many are 1 (as in a `ShardRecord`).
        examples: by feature, a clause that shows an unseen value.
    """
    return [
        UnseenShare(
            entry["name"],
            expected_unseen(entry["counts"]),
            ids[number] - missing[number],
            rare[number],
            (examples or {}).get(entry["name"], ""),
        )
        for number, entry in enumerate(features)
        if "counts" in entry
    ]


def expected_unseen(counts: Mapping[str, Any]) -> float:
    """Share of values without an id that training rows let expect, of a feature's counts."""
    below = 1.0 - counts["covered"] / max(1, counts["lookups"])
    return float(counts.get("expected_unseen", below))


def unseen_messages(shares: Iterable[UnseenShare], rows: str) -> list[str]:
    """A warning for each feature whose values are unseen far more often than expected, worst first; the last names several.

    Args:
        shares: of the features.
        rows: a plural name of the rows, as `held-out rows`.
    """
    far = sorted((one for one in shares if one.is_far), key=lambda one: one.expected - one.share)
    said = [
        f"feature {one.feature}: {one.share:.1%} of the values in {rows} have no id "
        f"(the training rows let expect {one.expected:.1%}){f': {one.example}' if one.example else ''}"
        for one in far[:MOST_SAID]
    ]
    if far[MOST_SAID:]:
        said.append(
            f"the same holds for {len(far) - MOST_SAID} more: {', '.join(one.feature for one in far[MOST_SAID:])}"
        )
    return said


def unseen_by_split(features: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By feature: the expected share (`expected`), and the share of unseen values in each held-out split that has values.

    Args:
        features: the `features` of a manifest.
    """
    found = {}
    for entry in features:
        if "counts" not in entry:
            continue
        found[entry["name"]] = {"expected": round(expected_unseen(entry["counts"]), 6)}
        for split in ("valid", "test"):
            values = entry["ids"].get(split, 0) - entry["missing"].get(split, 0)
            if values:
                found[entry["name"]][split] = round(entry["rare"][split] / values, 6)
    return found
