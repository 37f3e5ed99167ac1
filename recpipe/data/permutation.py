"""A keyed bijection of [0, size): a random permutation that is computed, never stored.

A Feistel network over the smallest power of two that holds `size`, walked along its cycles until it lands inside.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15
MASK64 = (1 << 64) - 1


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble uint64 values (the finalizer of SplitMix64): a bijection of 64-bit words."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def key_of(*parts: int) -> int:
    """One 64-bit key of several integers."""
    key = 0
    for part in parts:
        word = np.array([(key + GOLDEN + (part & MASK64)) & MASK64], dtype=np.uint64)
        key = int(mix(word)[0])
    return key


def permute(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a permutation of [0, size) chosen by `key` sends each position.

    Args:
        positions: integers in [0, size).
        size: number of rows.
        key: a 64-bit key; every key gives another permutation.

    Returns:
        int64 array of the same shape, all values in [0, size).
    """
    if size <= 1:
        return np.zeros(len(positions), dtype=np.int64)
    bits = max(2, (size - 1).bit_length())
    values = _feistel(positions.astype(np.uint64), bits, key)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], bits, key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: np.ndarray, bits: int, key: int) -> np.ndarray:
    """Alternating Feistel rounds on a word of `bits` bits; the two halves may differ by one bit."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for number in range(ROUNDS):
        salt = np.uint64(key_of(key, number))
        if number % 2:
            low = low ^ (mix(high ^ salt) & low_mask)
        else:
            high = high ^ (mix(low ^ salt) & high_mask)
    return (high << low_bits) | low
