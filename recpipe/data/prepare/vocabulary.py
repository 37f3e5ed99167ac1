"""From a value's key to its id: a sorted list of keys with an id beside each, or a hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from recpipe.data.arrays import map_array
from recpipe.data.permutation import key_of, mix
from recpipe.errors import DataError

MISSING, RARE, FIRST = 0, 1, 2


class Encoder(Protocol):
    """Gives ids to keys."""

    @property
    def num_ids(self) -> int:
        """Ids lie in [0, num_ids)."""

    def encode(self, keys: np.ndarray) -> np.ndarray:
        """int64 ids of keys that are not missing."""


@dataclass(frozen=True)
class FrequencyEncoder:
    """Ids by frequency.

    Args:
        keys: sorted keys that have an id of their own.
        ids: the id of each.
        num_ids: one more than the largest id.
    """

    keys: np.ndarray
    ids: np.ndarray
    num_ids: int

    def encode(self, keys: np.ndarray) -> np.ndarray:
        """int64 ids; 1 for a key that training rows did not have often enough."""
        codes, distinct = pd.factorize(keys)
        found = np.full(len(distinct), RARE, dtype=np.int64)
        if len(self.keys) and len(distinct):
            order = np.argsort(distinct)
            wanted = distinct[order]
            at = np.searchsorted(self.keys, wanted)
            inside = at < len(self.keys)
            hit = np.zeros(len(wanted), dtype=bool)
            hit[inside] = self.keys[at[inside]] == wanted[inside]
            found[order[hit]] = self.ids[at[hit]]
        return found[codes]


@dataclass(frozen=True)
class HashEncoder:
    """Ids by a fixed hash: the same on every run and machine; values may share an id, and no id means `rare`.

    Args:
        num_ids: rows of the table; id 0 stays for missing values.
        salt: different for each feature.
    """

    num_ids: int
    salt: int

    def encode(self, keys: np.ndarray) -> np.ndarray:
        """int64 ids in [1, num_ids)."""
        mixed = mix(keys.astype(np.uint64) ^ np.uint64(key_of(self.salt)))
        return 1 + (mixed % np.uint64(self.num_ids - 1)).astype(np.int64)


def vocabulary_files(directory: Path, feature: str) -> tuple[Path, Path]:
    """Files of the keys and of the ids."""
    return directory / f"{feature}.keys.npy", directory / f"{feature}.ids.npy"


def load_encoder(directory: Path, feature: str, num_ids: int, mapped: bool) -> FrequencyEncoder:
    """The vocabulary of a feature, in memory or mapped."""
    keys, ids = (map_array(path, "iu", (None,)) for path in vocabulary_files(directory, feature))
    if len(keys) != len(ids):
        raise DataError(f"{directory}: the vocabulary {feature} has {len(keys):,} keys and {len(ids):,} ids")
    return FrequencyEncoder(*(keys, ids) if mapped else (np.array(keys), np.array(ids)), num_ids)
