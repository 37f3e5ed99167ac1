"""Text values to 64-bit keys, the same on every run and machine: BLAKE2b of the bytes, once for each distinct value."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def text_keys(column: pa.Array, missing_texts: frozenset[bytes] = frozenset()) -> pa.Array:
    """uint64 keys of binary values; null where the value is null, empty or one of `missing_texts`."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    distinct = np.fromiter((_key(value) for value in values), dtype=np.uint64, count=len(values))
    indices = encoded.indices
    missing = np.asarray(indices.is_null())
    codes = np.asarray(indices.fill_null(0)).astype(np.int64)
    if not len(values):
        return pa.nulls(len(column), pa.uint64())
    missing |= np.array([not value or value in missing_texts for value in values])[codes]
    return pa.array(distinct[codes], mask=missing)


def _key(value: bytes | None) -> int:
    """The first eight bytes of the digest, little-endian."""
    return int.from_bytes(blake2b(value or b"", digest_size=8).digest(), "little")


def text_numbers(column: pa.Array) -> np.ndarray:
    """float32 numbers of binary values; NaN where the value is null or not a number."""
    encoded = column.dictionary_encode()
    numbers = np.array([_number(value) for value in encoded.dictionary.to_pylist()] + [np.nan], dtype=np.float32)
    return numbers[np.asarray(encoded.indices.fill_null(len(numbers) - 1)).astype(np.int64)]


def _number(value: bytes | None) -> float:
    """NaN where it is none."""
    try:
        return float(value or b"nan")
    except ValueError:
        return float("nan")


def split_keys(column: pa.Array, separator: str, missing_texts: frozenset[bytes] = frozenset()) -> pa.Array:
    """Lists of uint64 keys of binary values joined by `separator`; null where nothing is there."""
    lists = split_values(column, separator)
    keys = text_keys(lists.flatten(), missing_texts)
    return rebuild(lists, keys)


def split_values(column: pa.Array, separator: str) -> pa.Array:
    """Lists of the values; null where the text is null or empty."""
    if pa.types.is_list(column.type):
        return column
    empty = pc.equal(pc.binary_length(column), 0)
    return pc.split_pattern(pc.if_else(empty, pa.scalar(None, column.type), column), separator)


def rebuild(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of the same lengths (and nulls) with other values."""
    lengths = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    missing = np.asarray(lists.is_null())
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(missing))
