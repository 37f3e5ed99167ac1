"""Arrays in .npy files, mapped after their header is held against the file's size: no pickle, no object, no archive."""

from __future__ import annotations

import math
import os
import tokenize
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from recpipe.errors import DataError
from recpipe.escapes import shown
from recpipe.untrusted import open_regular

MAX_DIMS, MAX_ELEMENTS = 8, 2**48
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
UNREADABLE = (
    *(OSError, ValueError, SyntaxError, TypeError, KeyError, EOFError, MemoryError, RecursionError, OverflowError),
    tokenize.TokenError,
)


def map_array(path: Path, kinds: str = "iuf", shape: Sequence[int | None] | None = None) -> np.ndarray:
    """A mapped array of plain numbers in row order.

    Args:
        path: the file.
        kinds: letters of numpy's kinds that it may have: i, u, f, S.
        shape: sizes that it must have; None: any size, or any shape.

    Raises:
        DataError: the file is missing or damaged, or its array is another one.
    """
    try:
        with open_regular(path) as file:
            start, found, dtype = read_header(file)
            end = start + math.prod(found) * dtype.itemsize
            size = os.fstat(file.fileno()).st_size
        problem = "" if size == end else f"it has {size:,} bytes, its header says {end:,}"
        problem = problem or _misfit(found, dtype, kinds, shape)
        if problem:
            raise ValueError(problem)
        # Nothing can be mapped of a file without elements.
        return np.memmap(path, dtype, "r", start, found) if 0 not in found else np.zeros(found, dtype)
    except UNREADABLE as error:
        reason = shown(next(iter(str(error).splitlines()), "") or type(error).__name__)
        raise DataError(f"{shown(path, 2000)} cannot be read: {reason}; prepare the data again") from error


def read_header(file: BinaryIO) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Where values begin, the shape, and the type; ValueError for what is no plain array in row order."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of .npy files is not known")
    with warnings.catch_warnings():
        # numpy warns of headers as Python 2 wrote them; their values are the same.
        warnings.simplefilter("ignore", UserWarning)
        shape, fortran_order, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or (fortran_order and len(shape) > 1):
        raise ValueError("it is no plain array in row order")
    if len(shape) > MAX_DIMS or any(not 0 <= n <= MAX_ELEMENTS for n in shape):
        raise ValueError(f"its shape {shown(shape)} cannot be meant")
    if math.prod(n for n in shape if n) > MAX_ELEMENTS:
        raise ValueError(f"its shape {shown(shape)} cannot be meant")
    return file.tell(), shape, dtype


def _misfit(found: tuple[int, ...], dtype: np.dtype[Any], kinds: str, shape: Sequence[int | None] | None) -> str:
    if dtype.kind not in kinds or not dtype.isnative:
        return f"its values are {dtype}"
    fits = shape is None or (
        len(found) == len(shape) and all(want in (None, n) for n, want in zip(found, shape, strict=True))
    )
    return "" if fits else f"its shape is {found}, not {tuple('any' if n is None else n for n in shape or ())}"
