"""Which split a row belongs to: by a seeded draw from its position, by day, or by the file it came from.

The position of a row is its number among all usable rows of the main files, so the choice does not depend on how the
rows are cut into files or chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recpipe.data.permutation import key_of, mix
from recpipe.errors import ConfigError, DataError

TRAIN, VALID, TEST = 0, 1, 2
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Splitter:
    """The rule.

    Args:
        kind: fraction or days.
        valid_share, test_share: of the main rows, with kind `fraction`.
        seed: of the draw.
    """

    kind: str
    valid_share: float
    test_share: float
    seed: int

    def main_rows(self, first: int, count: int) -> np.ndarray:
        """uint8 split of main rows [first, first + count), with kind `fraction`."""
        splits = np.zeros(count, dtype=np.uint8)
        if self.valid_share or self.test_share:
            positions = np.arange(first, first + count, dtype=np.uint64)
            draws = mix(positions ^ np.uint64(key_of(self.seed, 0x5EED))) / np.float64(2**64)
            splits[draws < self.valid_share + self.test_share] = TEST
            splits[draws < self.valid_share] = VALID
        return splits

    def last_day(self, first: int, count: int, day_rows: int) -> np.ndarray:
        """uint8 split of rows [first, first + count) of the last day: first half valid, second half test."""
        positions = np.arange(first, first + count)
        return np.where(positions < (day_rows + 1) // 2, VALID, TEST).astype(np.uint8)


def make_splitter(
    kind: str, valid_share: float, test_share: float, given: bool, seed: int, num_main_files: int
) -> Splitter:
    """Check the settings against each other.

    Args:
        kind: data.split.
        valid_share, test_share: data.valid_fraction and data.test_fraction; -1 means the default.
        given: files of held-out rows were given.
        seed: data.split_seed.
        num_main_files: how many main files there are.

    Raises:
        ConfigError: settings that contradict each other or have no effect.
        DataError: too few files for a split by days.
    """
    if kind == "days":
        if given or max(valid_share, test_share) > 0:
            raise ConfigError("data.split=days holds out the last day: give no valid_path, test_path or fractions")
        if num_main_files < 2:
            raise DataError("data.split=days needs at least two day files (the last one is held out)")
        return Splitter("days", 0.0, 0.0, seed)
    if kind != "fraction":
        raise ConfigError(f"data.split={kind} is unknown; known: fraction, days")
    default = 0.0 if given else 0.1
    shares = [default if share == -1 else share for share in (valid_share, test_share)]
    if min(shares) < 0 or sum(shares) >= 1:
        valid, test = shares
        raise ConfigError(f"data.valid_fraction={valid} and data.test_fraction={test} must leave rows to train on")
    return Splitter("fraction", shares[0], shares[1], seed)
