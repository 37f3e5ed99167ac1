"""Arrays inside an uncompressed .npz file, written and mapped piece by piece: a day of multi-hot ids outgrows memory."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from recpipe.data.arrays import UNREADABLE, read_header
from recpipe.errors import DataError
from recpipe.escapes import shown
from recpipe.untrusted import open_regular

LOCAL_HEADER = struct.Struct("<26xHH")


def write_npz(path: Path, arrays: Iterable[tuple[str, tuple[int, int], Iterable[np.ndarray]]]) -> None:
    """Write int32 arrays the way `numpy.savez` does; the file appears under its name when it is whole.

    Args:
        path: the .npz file.
        arrays: (name, shape, pieces of rows in order) of each array.
    """
    partial = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, shape, pieces in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<i4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in pieces:
                    file.write(np.ascontiguousarray(piece, dtype="<i4").tobytes())
    partial.replace(path)


def map_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file by name, mapped.

    Raises:
        DataError: the file is missing, damaged or compressed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {member.filename.removesuffix(".npy"): _map_member(path, member) for member in archive.infolist()}
    except (*UNREADABLE, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path} cannot be read: {shown(error)}") from error


def _map_member(path: Path, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, mapped from where its bytes lie in the file."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed and cannot be mapped; write the file with numpy.savez")
    with open_regular(path) as file:
        file.seek(member.header_offset)
        local = file.read(LOCAL_HEADER.size)
        if len(local) < LOCAL_HEADER.size:
            raise ValueError(f"{shown(member.filename)} is cut short")
        name_bytes, extra_bytes = LOCAL_HEADER.unpack(local)
        file.seek(name_bytes + extra_bytes, 1)
        start, shape, dtype = read_header(file)
        if start + math.prod(shape) * dtype.itemsize > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{shown(member.filename)} is cut short")
        return np.memmap(path, dtype, "r", start, shape) if 0 not in shape else np.zeros(shape, dtype)
