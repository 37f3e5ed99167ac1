"""The checksum of a text from those of its pieces: CRC-32 is linear, so pieces can be read in any order."""

from __future__ import annotations

from collections.abc import Iterable

POLYNOMIAL = 0xEDB88320
Matrix = list[int]


def joined_crc(pieces: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the pieces one after the other; each is (its own CRC-32, its bytes)."""
    total = 0
    for crc, length in pieces:
        total = _after_zeros(total, length) ^ crc
    return total


def _after_zeros(crc: int, length: int) -> int:
    """What `length` zero bytes make of a checksum, by squaring the matrix that one bit applies."""
    matrix = [POLYNOMIAL, *(1 << bit for bit in range(31))]
    bits = 8 * length
    while bits and crc:
        if bits & 1:
            crc = _times(matrix, crc)
        matrix = [_times(matrix, column) for column in matrix]
        bits >>= 1
    return crc


def _times(matrix: Matrix, vector: int) -> int:
    """Matrix times vector over GF(2)."""
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total
