"""Hex text to integers, eight digits at a time in one 64-bit word."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ONES = 0x0101010101010101
WIDTH = 8


def hex_keys(column: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of a column of hex text.

    Args:
        column: binary values of 0 to 8 hex digits; empty means missing.

    Returns:
        (keys uint32, missing bool, bad bool), one a row; bad where the text is not 1 to 8 hex digits.
    """
    starts, data = _buffers(column)
    lengths = np.diff(starts)
    missing = lengths == 0
    words = np.full(len(column), 0x3030303030303030, dtype=np.uint64)
    whole = lengths == WIDTH
    words[whole] = _whole_words(starts, data, whole)
    for row in np.flatnonzero(~missing & ~whole & (lengths < WIDTH)):
        text = data[starts[row] : starts[row + 1]].tobytes().rjust(WIDTH, b"0")
        words[row] = int.from_bytes(text, "big")
    keys, valid = _decode(words)
    return keys, missing, ~missing & (~valid | (lengths > WIDTH))


def _buffers(column: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of a binary column."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return starts, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)


def _whole_words(starts: np.ndarray, data: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The values of eight bytes as big-endian words."""
    first, last, count = int(starts[0]), int(starts[-1]), int(whole.sum())
    if last - first == count * WIDTH:
        return data[first:last].view(">u8").astype(np.uint64)
    at = starts[:-1][whole][:, None] + np.arange(WIDTH)
    return data[at].view(">u8").astype(np.uint64)[:, 0]


def _decode(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight ASCII digits in a word to a 32-bit value, and whether all eight were hex digits."""
    letter_bit = (words >> np.uint64(6)) & np.uint64(ONES)
    nibbles = (words & np.uint64(0x0F * ONES)) + letter_bit * np.uint64(9)
    letters = ((nibbles + np.uint64(6 * ONES)) >> np.uint64(4)) & np.uint64(ONES)
    canonical = nibbles + np.uint64(0x30 * ONES) + letters * np.uint64(0x27)
    valid = (canonical == (words | (letters * np.uint64(0x20)))) & ((nibbles & np.uint64(0xF0 * ONES)) == 0)
    packed = (nibbles | (nibbles >> np.uint64(4))) & np.uint64(0x00FF00FF00FF00FF)
    packed = (packed | (packed >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    packed = (packed | (packed >> np.uint64(16))) & np.uint64(0xFFFFFFFF)
    return packed.astype(np.uint32), valid
