"""A .npy file written piece by piece, whose length is known only at the end."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

HEADER = 128


class NpyWriter:
    """Appends arrays to a file; `close` writes the header and moves the file to its name.

    Args:
        path: the final name.
        dtype: of all pieces.
        columns: size of the second dimension; None for a flat array.
    """

    def __init__(self, path: Path, dtype: np.dtype, columns: int | None = None) -> None:
        self._path, self._dtype, self._columns = path, np.dtype(dtype), columns
        self._partial = path.with_name(path.name + ".partial")
        self._file = self._partial.open("wb")
        self._file.write(b"\0" * HEADER)
        self._count = 0

    def append(self, values: np.ndarray) -> None:
        """Add rows (or elements) at the end."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._count += len(values)

    def close(self) -> None:
        """Write the header; only then does the file have its name."""
        shape = f"({self._count},)" if self._columns is None else f"({self._count}, {self._columns})"
        text = f"{{'descr': '{self._dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        body = text.ljust(HEADER - 11).encode() + b"\n"
        with self._file:
            self._file.seek(0)
            self._file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + body)
        self._partial.replace(self._path)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # What could not be written before cannot be written now; the first error is the one to tell.
            with suppress(OSError):
                self._file.close()


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
